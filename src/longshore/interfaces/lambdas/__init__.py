"""Functions on AWS, a module each: ``longshore.interfaces.lambdas.{module}.handler``."""
