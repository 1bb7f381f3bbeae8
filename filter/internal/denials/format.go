package denials

import (
	"encoding/binary"
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

// Each worker publishes one message in one place, a value of shared data that only one
// worker writes at a time. All integers are little endian:
//
//	0  u8   format version, 1
//	1  u8   kind, 7 = denials
//	2  u16  lists n
//	4  u64  worker
//	12 i64  when it was written, in nanoseconds
//	20      n × list: u64 id, i64 since when, u32 rest, u16 keys k, and
//	        k × u64 key, u32 denied, u32 error, u8 text, text bytes; no text where it is a hash
const (
	formatVersion = 1
	kindDenials   = 7

	headBytes     = 20
	listHeadBytes = 22
	keyHeadBytes  = 17
)

var le = binary.LittleEndian

// head is the beginning of a message.
type head struct {
	worker uint64
	atNs   int64
}

// list is what a message says of one rule.
type list struct {
	id uint64 // see Worker.listID
	Denials
}

// placeKey returns the key in shared data of a place.
func placeKey(place uint64) []byte {
	return strconv.AppendUint([]byte("sluice/denied/"), place, 10)
}

func appendMessage(b []byte, h head, lists []list) []byte {
	b = append(b, formatVersion, kindDenials)
	b = le.AppendUint16(b, uint16(len(lists)))
	b = le.AppendUint64(b, h.worker)
	b = le.AppendUint64(b, uint64(h.atNs))
	for i := range lists {
		l := &lists[i]
		b = le.AppendUint64(b, l.id)
		b = le.AppendUint64(b, uint64(l.SinceNs))
		b = le.AppendUint32(b, l.Rest)
		b = le.AppendUint16(b, uint16(len(l.Keys)))
		for j := range l.Keys {
			k := &l.Keys[j]
			b = le.AppendUint64(b, k.ID)
			b = le.AppendUint32(b, k.Denied)
			b = le.AppendUint32(b, k.Error)
			b = append(b, byte(len(k.Text())))
			b = append(b, k.Text()...)
		}
	}
	return b
}

// messageBytes returns how long the message is that appendMessage writes.
func messageBytes(lists []list) int {
	n := headBytes
	for i := range lists {
		n += listHeadBytes
		for j := range lists[i].Keys {
			n += keyHeadBytes + len(lists[i].Keys[j].Text())
		}
	}
	return n
}

// decodeHead reads the head of a message. ok is false if the bytes are no message.
func decodeHead(b []byte) (h head, ok bool) {
	if len(b) < headBytes || b[0] != formatVersion || b[1] != kindDenials {
		return head{}, false
	}
	return head{worker: le.Uint64(b[4:]), atNs: int64(le.Uint64(b[12:]))}, true
}

// decodeLists reads the lists of a message that decodeHead has accepted. It leaves out the
// first list that is cut short, and all after it.
func decodeLists(b []byte) (lists []list) {
	n := int(le.Uint16(b[2:]))
	b = b[headBytes:]
	for range n {
		if len(b) < listHeadBytes {
			return lists
		}
		var l list
		l.id = le.Uint64(b)
		l.SinceNs = int64(le.Uint64(b[8:]))
		l.Rest = le.Uint32(b[16:])
		keys := int(le.Uint16(b[20:]))
		b = b[listHeadBytes:]
		for range keys {
			if len(b) < keyHeadBytes {
				return lists
			}
			k := top.Key{ID: le.Uint64(b), Denied: le.Uint32(b[8:]), Error: le.Uint32(b[12:])}
			text := int(b[16])
			b = b[keyHeadBytes:]
			if len(b) < text {
				return lists
			}
			k.SetText(b[:text])
			b = b[text:]
			l.Keys = append(l.Keys, k)
		}
		lists = append(lists, l)
	}
	return lists
}

// maxPart is how many bytes of a key's part are kept.
const maxPart = 254

// appendKey appends the text of a key in plain: for each part one byte, which is 0 if the
// request lacks the part, else 1 more than the length of the text that follows. A key that
// is too long is cut.
func appendKey(b []byte, key *policy.Key) []byte {
	for i := range key.Parts {
		if len(b) >= top.MaxText {
			break
		}
		v := &key.Parts[i]
		if !v.Present {
			b = append(b, 0)
			continue
		}
		part := v.Whole()
		part = part[:min(len(part), maxPart)]
		b = append(b, byte(len(part)+1))
		b = append(b, part...)
	}
	return b
}

// DecodeKey returns the parts of a key from its text in plain, nil for a part that the
// request lacked. cut says that the last part was, or may have been, longer.
func DecodeKey(text []byte) (parts []*string, cut bool) {
	parts = []*string{}
	for len(text) > 0 {
		size := int(text[0])
		text = text[1:]
		if size == 0 {
			parts = append(parts, nil)
			continue
		}
		length := size - 1
		part := string(text[:min(length, len(text))])
		if len(part) < length || length == maxPart {
			cut = true
		}
		parts = append(parts, &part)
		text = text[len(part):]
	}
	return parts, cut
}
