"""The built-in studies as data, one module each. `favorit study list` lists them."""
