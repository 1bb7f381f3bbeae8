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

// start is the beginning of an answer. It shows the format if the content type does not, or is
// wrong: servers send streams as JSON, and errors as streams.
type start struct {
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
func (s *start) read(p []byte) (rest []byte, isOver bool) {
	for i, c := range p {
		if s.size == 0 && isSpace(c) {
			continue
		}
		if s.size == 0 && (c == '{' || c == '[') {
			s.isOver, s.told = true, oneJSON
			return p[i:], true
		}
		s.kept[s.size] = c
		s.size++
		s.isOver = s.isDecided()
		if s.isOver {
			return p[i+1:], true
		}
	}
	return nil, false
}

// isDecided sets the format if the bytes show it, and reports whether more bytes could not.
func (s *start) isDecided() bool {
	begun := s.kept[:s.size]
	if begins(byteOrderMark, begun) {
		if len(begun) == len(byteOrderMark) {
			s.size = 0
		}
		return false
	}
	for _, name := range fieldNames {
		if begins(name, begun) {
			isWhole := len(begun) == len(name)
			if isWhole {
				s.told = serverSentEvents
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
func (s *start) formatOf(declared format) format {
	if s.told == unknownFormat || s.told == oneJSON && declared == jsonLines {
		return declared
	}
	return s.told
}
