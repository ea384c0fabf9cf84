"""Text models as C libraries: elastic and recurrent ones, with the API of c/model/pliant_model.h."""
