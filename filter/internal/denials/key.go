package denials

import (
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

// maxPart is how many bytes of a key's part are kept.
const maxPart = 254

// appendKey appends the beginning of a key: of each part one byte for its length and 1 more,
// 0 for a part that the request lacks, and its text.
func appendKey(b []byte, key *policy.Key) []byte {
	for i := 0; i < len(key.Parts) && len(b) < top.MaxText; i++ {
		if v := &key.Parts[i]; v.Present {
			part := v.Whole()
			part = part[:min(len(part), maxPart)]
			b = append(append(b, byte(len(part)+1)), part...)
		} else {
			b = append(b, 0)
		}
	}
	return b
}

// KeyOf returns the parts of a key that appendKey has written, nil for a part that the
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
		cut = cut || len(part) < n-1 || n-1 == maxPart
		parts, text = append(parts, &part), text[len(part):]
	}
	return parts, cut
}
