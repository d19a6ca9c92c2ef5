"""Other packages' names for what shoal has, so that code written against them runs on shoal."""
