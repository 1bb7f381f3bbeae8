package source

// UsageError is about an option, with a hint that says what would be right. It is here because packages importer and
// envoy both return it.
type UsageError struct{ Message, Hint string }

func (e *UsageError) Error() string { return e.Message }
