"""What tests share: a helper a module, named after what it does."""
