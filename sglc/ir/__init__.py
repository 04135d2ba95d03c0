"""The intermediate representation: values, ops, programs, plans. Knows no back end and no runtime."""
