# Marks src/uopc as the package that a cimport names. It declares nothing.
