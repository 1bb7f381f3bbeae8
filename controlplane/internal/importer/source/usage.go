package source

// UsageError is about an option, with a hint that says what would be right.
type UsageError struct{ Message, Hint string }

func (e *UsageError) Error() string { return e.Message }
