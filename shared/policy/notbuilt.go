package policy

// notBuilt lists what the policy file has words for and this build does not
// do. Naming one of them is refused, never ignored, and is told apart from a
// typing error. Whoever builds one takes its line out.
var notBuilt = []struct{ object, name string }{
	{"rule", "lease"}, // goes with scope cluster
}

// notBuiltWords is notBuilt for the words a field may hold.
var notBuiltWords = []struct{ field, word string }{
	{"scope", "cluster"},
}

func isNotBuilt(object, name string) bool {
	for _, n := range notBuilt {
		if n.object == object && n.name == name {
			return true
		}
	}
	return false
}

// isNotBuiltWord takes the field's path, whose end is its name.
func isNotBuiltWord(path, word string) bool {
	for _, n := range notBuiltWords {
		if n.word == word && (path == n.field || hasFieldSuffix(path, n.field)) {
			return true
		}
	}
	return false
}

func hasFieldSuffix(path, field string) bool {
	at := len(path) - len(field)
	return at > 0 && path[at-1] == '.' && path[at:] == field
}
