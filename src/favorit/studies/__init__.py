"""The built-in studies, one module for each: data only. `favorit study list` names them."""
