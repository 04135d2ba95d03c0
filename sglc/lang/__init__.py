"""SGLang's module paths, for programs that import from them."""
