package result

import "encoding/binary"

// Brief is what one rule decided on a request, without its counts. Programs that
// decide millions of requests read it.
type Brief struct {
	Rule    []byte
	Allowed bool
	Shadow  bool
	Reason  []byte
	Key     []byte // of its parts, as AppendBriefPart has written them
}

// The flags of a brief.
const (
	briefDenied = 1 << iota
	briefShadow
)

// AppendBrief appends a rule's decision; its key follows, part by part:
//
//	flags, 1 byte | rule, reason: length, bytes | number of parts, 1 byte | parts: length + 1, bytes; 0 = missing
//
// Lengths are varints.
func AppendBrief(b []byte, rule, reason string, allowed, shadow bool, parts int) []byte {
	flags := byte(0)
	if !allowed {
		flags |= briefDenied
	}
	if shadow {
		flags |= briefShadow
	}
	b = append(binary.AppendUvarint(append(b, flags), uint64(len(rule))), rule...)
	b = append(binary.AppendUvarint(b, uint64(len(reason))), reason...)
	return append(b, byte(parts))
}

// AppendBriefPart appends a key part; its value is label and text.
func AppendBriefPart(b []byte, label, text string) []byte {
	if label == "" {
		return append(binary.AppendUvarint(b, uint64(len(text))+1), text...)
	}
	b = binary.AppendUvarint(b, uint64(len(label)+1+len(text))+1)
	return append(append(append(b, label...), '='), text...)
}

// AppendBriefMissing appends a key part that the request lacks.
func AppendBriefMissing(b []byte) []byte { return append(b, 0) }

// CutBrief reads the first brief of b, and returns what follows it. Its texts are
// valid as long as b.
func CutBrief(b []byte) (brief Brief, rest []byte, ok bool) {
	if len(b) == 0 {
		return brief, nil, false
	}
	brief.Allowed, brief.Shadow = b[0]&briefDenied == 0, b[0]&briefShadow != 0
	brief.Rule, b, ok = cutText(b[1:], 0)
	if !ok {
		return brief, nil, false
	}
	brief.Reason, b, ok = cutText(b, 0)
	if !ok || len(b) == 0 {
		return brief, nil, false
	}
	key := b
	parts := b[0]
	b = b[1:]
	for range parts {
		_, b, ok = cutText(b, 1)
		if !ok {
			return brief, nil, false
		}
	}
	brief.Key = key[:len(key)-len(b)]
	return brief, b, true
}

// KeyParts returns the parts of a brief's key, nil for one that is missing.
func (b *Brief) KeyParts() []*string {
	if len(b.Key) == 0 {
		return nil
	}
	parts, rest := make([]*string, b.Key[0]), b.Key[1:]
	for i := range parts {
		missing := len(rest) > 0 && rest[0] == 0
		var text []byte
		text, rest, _ = cutText(rest, 1)
		if !missing {
			s := string(text)
			parts[i] = &s
		}
	}
	return parts
}

// cutText reads a length and a text. The length is written by more larger than it is.
func cutText(b []byte, more uint64) (text, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 {
		return nil, nil, false
	}
	n = max(n, more) - more
	b = b[size:]
	if n > uint64(len(b)) {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}
