"""Real drivers, a real proxy, real servers."""
