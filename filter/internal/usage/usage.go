// Package usage reads how many tokens an answer says that it took, while the answer passes by.
//
// Its invariant: it sees each chunk once, keeps nothing of it, and needs the same memory for
// any answer. What it cannot read it calls unknown; it has no errors, because an answer goes
// on whatever this package makes of it. It must never import a decoder by reflection.
package usage

import "strings"

// Usage is what an answer said, and what an estimate needs where it did not.
type Usage struct {
	Input, Output           int64 // tokens; where not known, no less than these
	InputKnown, OutputKnown bool
	Failure                 Failure
	TextEvents              int64 // events that carry text; an answer in one piece is one event
	TextBytes               int64 // of their text, in UTF-8
	Bytes                   int64 // of the answer
}

// Failure says why an answer could not be read.
type Failure uint8

// The failures. An answer without one may still lack counts: a stream that was cut, or one
// whose client did not ask for them.
const (
	None        Failure = iota
	UnknownType         // the content type is none of those in which APIs answer
	Encoded             // it has a content encoding
	Malformed           // not the JSON or the frames that its content type promises
	Foreign             // it has neither a count nor text where the known APIs have them

	// Failures is how many there are, None among them.
	Failures = int(Foreign) + 1
)

var failures = [Failures]string{"none", "unknown_type", "encoded", "malformed", "foreign"}

func (f Failure) String() string { return failures[f] }

// bytesPerToken is what an estimate takes for text of any language, and for JSON.
const bytesPerToken = 4

// Estimate returns the tokens, with a guess for those that the answer did not say: by the
// size of the request, and by the answer's text. Models send about one token an event. Of
// an answer that cannot be read all bytes count as text.
func (u *Usage) Estimate(requestBytes int64) (input, output int64) {
	input, output = u.Input, u.Output
	if !u.InputKnown {
		input = max(input, requestBytes/bytesPerToken)
	}
	switch {
	case u.OutputKnown:
	case u.Failure != None:
		output = max(output, u.Bytes/bytesPerToken)
	default:
		output = max(output, u.TextEvents, u.TextBytes/bytesPerToken)
	}
	return input, output
}

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

// Scanner reads one answer, after Reset.
type Scanner struct {
	format  format
	failure Failure
	bytes   int64
	events  events
	frames  frames
	json    document
}

// Reset begins an answer with the values of these headers, which are empty where it has none.
func (s *Scanner) Reset(contentType, contentEncoding string) {
	*s = Scanner{format: formatOf(contentType)}
	encoding := strings.TrimSpace(contentEncoding)
	if s.format == unknownFormat {
		s.failure = UnknownType
	} else if encoding != "" && !strings.EqualFold(encoding, "identity") {
		s.failure = Encoded
	}
	s.events.isLines = s.format == jsonLines
	s.json.start()
}

// Write reads the next chunk.
func (s *Scanner) Write(chunk []byte) {
	s.bytes += int64(len(chunk))
	switch {
	case s.failure != None:
	case s.format == oneJSON:
		if s.json.write(chunk); s.json.state == failed {
			s.failure = Malformed
		}
	case s.format == awsFrames:
		if !s.frames.write(chunk, &s.json) {
			s.failure = Malformed
		}
	default:
		s.events.write(chunk, &s.json)
	}
}

// End returns what the answer said up to now. After it comes Reset.
func (s *Scanner) End() Usage {
	t := &s.json.tally
	if s.frames.at > 0 {
		t.doubt() // the checksum has yet to come
	}
	s.json.finish()
	u := Usage{Failure: s.failure, TextEvents: t.textEvents, TextBytes: t.textBytes, Bytes: s.bytes}
	u.Input, u.InputKnown = t.sum(inputParts)
	u.Output, u.OutputKnown = t.sum(outputParts)
	if !u.OutputKnown {
		begun, _ := t.sum(1 << begun)
		u.Output = max(u.Output, begun)
	}
	switch {
	case u.Failure != None:
		u.InputKnown, u.OutputKnown = false, false
	case t.textEvents > 0 || t.namesOutput:
	case t.said|t.doubted == 0:
		u.Failure = Foreign
	case s.format == oneJSON && s.json.root == 0:
		u.OutputKnown = u.InputKnown // embeddings have no output, and leave it out
	}
	return u
}
