package source

// UsageError is about an option, with a hint that says what would be right. What is wrong in a file is a problem at a
// Place instead.
type UsageError struct{ Message, Hint string }

func (e *UsageError) Error() string { return e.Message }
