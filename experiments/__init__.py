"""Studies made with the public interface of pyro_deeponet."""
