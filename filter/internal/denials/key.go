package denials

// MaxPart is how many bytes of a key's part are kept.
const MaxPart = 254

// AppendPart appends the beginning of a key's part: one byte for its length and 1 more, 0
// for a part that the request lacks, and its text.
func AppendPart(b []byte, part string, present bool) []byte {
	if !present {
		return append(b, 0)
	}
	part = part[:min(len(part), MaxPart)]
	return append(append(b, byte(len(part)+1)), part...)
}

// KeyOf returns the parts of a key that AppendPart has written, nil for a part that the
// request lacked. cut says that more than what is returned was written.
func KeyOf(text []byte) (parts []*string, cut bool) {
	parts = []*string{}
	for len(text) > 0 {
		n := int(text[0])
		text = text[1:]
		if n == 0 {
			parts = append(parts, nil)
			continue
		}
		part := string(text[:min(n-1, len(text))])
		cut = cut || len(part) < n-1 || n-1 == MaxPart
		parts, text = append(parts, &part), text[len(part):]
	}
	return parts, cut
}
