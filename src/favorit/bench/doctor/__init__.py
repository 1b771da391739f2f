"""`favorit doctor`: statistics of the attention in a trained model, and advice for each layer."""
