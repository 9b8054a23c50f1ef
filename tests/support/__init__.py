"""What tests share: servers, databases, certificates."""
