# Marks src/uopc/_hot as the package that a cimport names. It declares nothing.
