"""Local training: what an algorithm may ask of clients (`work`), and the engines that compute it."""
