// Package usage reads from an answer, while it passes, how many tokens it took.
//
// Its invariant: it sees each chunk once, keeps nothing of it, and needs the same memory for any
// answer. A count that it cannot read is unknown. It returns no errors, because no answer may
// depend on this package. It must never import a decoder by reflection.
//
// The way of a chunk, by files:
//
//	Scanner.Write      usage.go
//	  opening.read     format.go    reads the first bytes, until they show the format
//	  events.write     events.go    cuts lines and server-sent events into documents
//	  frames.write     frames.go    the same for AWS' frames; one JSON needs neither
//	  document.write   document.go  keeps where in the JSON the reader is
//	    readString, …  scalar.go    reads strings and words
//	    theTree.field  tree.go      finds which node of the tables' paths a name leads to
//	    tally.count    tally.go     adds up counts, as addText does with text
//	Scanner.End        usage.go     makes a Usage of the tally
//
// table.go has what each API calls its counts and its text: a new API is rows there.
package usage

import "strings"

// Usage is what an answer said of its tokens, and what an estimate needs if it did not.
type Usage struct {
	Input, Output           int64 // tokens; at least so many if not known
	InputKnown, OutputKnown bool
	CacheRead, CacheWritten int64 // what of Input was read from a cache, and what was written to one
	Total                   int64 // 0 unless it is known and the parts are not
	atLeast                 int64 // a total that was said of an answer that cannot be read
	Failure                 Failure
	TextEvents              int64  // events that carry text; an answer in one piece is one event
	TextBytes               int64  // of their text, in UTF-8
	Bytes                   int64  // of the answer
	Model                   string // that answered; empty if it is not known, or nobody called ReadModel
	IsBedrock               bool   // the answer has counts of Bedrock's API, or its frames
}

// Failure says why an answer could not be read.
type Failure uint8

// The failures. An answer without a failure may still lack counts: its stream was cut, or its
// client did not ask for them.
const (
	None        Failure = iota
	UnknownType         // no API's answers have its content type and its first bytes
	Encoded             // it has a content encoding
	Malformed           // not the JSON or the frames that its content type promises
	Foreign             // it has nothing that the known APIs have

	// Failures is how many there are, None among them.
	Failures = int(Foreign) + 1
)

var failures = [Failures]string{"none", "unknown_type", "encoded", "malformed", "foreign"}

func (f Failure) String() string { return failures[f] }

// bytesPerToken is what an estimate supposes for text of any language, and for JSON.
const bytesPerToken = 4

// Estimate returns the tokens. If the answer did not say them, it estimates them by the size of the
// request and by the answer's text. Models send about one token an event. If an answer cannot be
// read, all its bytes count as text. Both together are no less than a total that the answer said.
func (u *Usage) Estimate(requestBytes int64) (input, output int64) {
	input, output = u.Input, u.Output
	if !u.InputKnown {
		input = max(input, requestBytes/bytesPerToken)
	}
	switch {
	case u.OutputKnown:
	case u.Failure != None:
		output = max(output, u.Bytes/bytesPerToken, u.atLeast-input)
	default:
		output = max(output, u.TextEvents, u.TextBytes/bytesPerToken, u.Total-input)
	}
	return input, output
}

// Scanner reads one answer, after Reset. Do not copy it: Reset makes it refer to its own parts.
type Scanner struct {
	format  format
	failure Failure
	bytes   int64
	opening opening
	events  events
	frames  frames
	json    document
	wrapped wrappedEvents
}

// Reset begins an answer with the values of these headers, which are empty if it lacks them.
func (s *Scanner) Reset(contentType, contentEncoding string) {
	makeTree.Do(func() { theTree = newTree() })
	*s = Scanner{format: formatOf(contentType)}
	encoding := strings.TrimSpace(contentEncoding)
	if encoding != "" && !strings.EqualFold(encoding, "identity") {
		s.failure = Encoded
	}
	if s.format == awsFrames {
		s.opening.isOver = true
		s.json.wrapped = &s.wrapped
	}
	s.json.start()
}

// ReadModel makes the scanner read the model's name, too. Call it after Reset.
func (s *Scanner) ReadModel() { s.json.readsModel, s.wrapped.json.readsModel = true, true }

// Write reads the next chunk.
func (s *Scanner) Write(chunk []byte) {
	s.bytes += int64(len(chunk))
	if !s.opening.isOver && s.failure == None {
		rest, ok := s.opening.read(chunk)
		if !ok {
			return
		}
		s.begin(s.opening.formatOf(s.format))
		s.read(s.opening.kept[:s.opening.size])
		chunk = rest
	}
	s.read(chunk)
}

// begin begins to read an answer of a format.
func (s *Scanner) begin(f format) {
	s.format = f
	s.events.isLines = f == jsonLines
	s.json.goesOn = f == oneJSON
	if f == unknownFormat {
		s.failure = UnknownType
	}
}

func (s *Scanner) read(p []byte) {
	switch {
	case s.failure != None:
	case s.format == oneJSON:
		s.json.write(p)
		if s.json.state == failed {
			s.failure = Malformed
		}
	case s.format == awsFrames:
		if !s.frames.write(p, &s.json) {
			s.failure = Malformed
		}
	default:
		s.events.write(p, &s.json)
	}
}

// End returns what the answer has said so far. Call Reset after it.
func (s *Scanner) End() Usage {
	if s.frames.at >= preludeSize {
		s.json.doubt() // the checksum of this frame has yet to come
	}
	s.json.finish()
	d := s.counted()
	u := d.usage(s.format == oneJSON && d.root == 0 && !d.isMany)
	u.Failure, u.Bytes = s.failure, s.bytes
	u.IsBedrock = u.IsBedrock || s.format == awsFrames
	if d.hasModel {
		u.Model = string(d.model[:d.modelSize])
	}
	switch {
	case u.Failure != None:
		u.giveUp()
	case !s.opening.isOver && s.format == unknownFormat:
		u.Failure = UnknownType
	case !d.isOfAPI:
		u.Failure = Foreign
	}
	return u
}

// counted returns the document that has the counts: if the frames wrap events, theirs.
func (s *Scanner) counted() *document {
	if s.wrapped.isUsed {
		return &s.wrapped.json
	}
	return &s.json
}

// giveUp makes all counts lower bounds.
func (u *Usage) giveUp() {
	u.InputKnown, u.OutputKnown = false, false
	u.atLeast, u.Total = u.Total, 0
}
