package usage

import "strings"

type format uint8

const (
	unknownFormat format = iota
	oneJSON              // an object, or an array of objects
	jsonLines
	serverSentEvents
	awsFrames
)

func formatOf(contentType string) format {
	mediaType, _, _ := strings.Cut(contentType, ";")
	switch strings.ToLower(strings.TrimSpace(mediaType)) {
	case "application/json":
		return oneJSON
	case "application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines":
		return jsonLines
	case "text/event-stream":
		return serverSentEvents
	case "application/vnd.amazon.eventstream":
		return awsFrames
	}
	return unknownFormat
}

// opening is the beginning of an answer. It shows the format if the content type does not, or is
// wrong: servers send streams as JSON, and errors as streams.
type opening struct {
	kept   [6]byte // may be part of a field's name or of a byte order mark
	size   int     // of kept
	isOver bool
	told   format
}

// byteOrderMark is passed over at the beginning of an answer, whatever its format.
const byteOrderMark = "\xef\xbb\xbf"

// fieldNames are the names that an event may begin with. A colon alone begins a comment.
var fieldNames = [...]string{dataField, "event:", "id:", "retry:", ":"}

// read reads until the format is known or certainly unknown, and returns the rest of the chunk.
func (o *opening) read(p []byte) (rest []byte, isOver bool) {
	for i, c := range p {
		if o.size == 0 && isSpace(c) {
			continue
		}
		if o.size == 0 && (c == '{' || c == '[') {
			o.isOver, o.told = true, oneJSON
			return p[i:], true
		}
		o.kept[o.size] = c
		o.size++
		o.isOver = o.isDecided()
		if o.isOver {
			return p[i+1:], true
		}
	}
	return nil, false
}

// isDecided sets the format if the bytes show it, and reports whether more bytes could not.
func (o *opening) isDecided() bool {
	begun := o.kept[:o.size]
	if begins(byteOrderMark, begun) {
		if len(begun) == len(byteOrderMark) {
			o.size = 0
		}
		return false
	}
	for _, name := range fieldNames {
		if begins(name, begun) {
			isWhole := len(begun) == len(name)
			if isWhole {
				o.told = serverSentEvents
			}
			return isWhole
		}
	}
	return true
}

func begins(text string, p []byte) bool {
	for i, c := range p {
		if i == len(text) || text[i] != c {
			return false
		}
	}
	return true
}

// formatOf returns the format of an answer whose content type declares one.
func (o *opening) formatOf(declared format) format {
	if o.told == unknownFormat || o.told == oneJSON && declared == jsonLines {
		return declared
	}
	return o.told
}
