package accesslog

import (
	"errors"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// container takes the lines of a server out of the log that a container runtime keeps of its output. The
// runtime writes each line into one of its own, and a long line into several.
type container struct {
	name string // of the runtime's format
	// cut takes apart what the runtime writes: the output, its text, and whether the line ends with it.
	cut func(line string) (output, text string, ends, ok bool)

	begun map[string]string // lines that go on, by output
}

// containers are the formats of runtimes: that of the Kubernetes CRI, as containerd and CRI-O write
// /var/log/pods/*/*/*.log, and Docker's json-file.
func containers() []*container {
	return []*container{{name: "cri", cut: cutCRI}, {name: "json-file", cut: cutJSONFile}}
}

// containerOf returns the runtime's format in which most of the lines are, nil where there is none.
func containerOf(lines []string) *container {
	for _, c := range containers() {
		isCut := func(line string) bool { _, _, _, ok := c.cut(line); return ok }
		if len(lines) > 0 && 2*count(lines, isCut) > len(lines) {
			c.begun = map[string]string{}
			return c
		}
	}
	return nil
}

// What a runtime's line is without a line of the server's.
var (
	errGoesOn      = errors.New("the line goes on")
	errNoContainer = errors.New("the container runtime wrote the other lines, and not this one")
)

// take returns the server's line that ends with a line of the runtime's.
func (c *container) take(line string) (string, error) {
	output, text, ends, ok := c.cut(line)
	if !ok {
		return line, errNoContainer
	}
	whole := c.begun[output] + text
	if !ends {
		c.begun[output] = whole[:min(len(whole), maxLineBytes+1)]
		return "", errGoesOn
	}
	delete(c.begun, output)
	if len(whole) > maxLineBytes {
		return whole[:maxLineBytes], errLong
	}
	return whole, nil
}

// takeAll returns the server's lines in those of a runtime.
func (c *container) takeAll(lines []string) (taken []string) {
	for _, line := range lines {
		if text, err := c.take(line); err == nil && strings.TrimSpace(text) != "" {
			taken = append(taken, text)
		}
	}
	clear(c.begun)
	return taken
}

// cutCRI reads 2026-01-31T12:00:00.123456789Z stdout F text; P = the line goes on.
func cutCRI(line string) (output, text string, ends, ok bool) {
	at, rest, _ := strings.Cut(line, " ")
	output, rest, _ = strings.Cut(rest, " ")
	tags, text, _ := strings.Cut(rest, " ")
	tag, _, _ := strings.Cut(tags, ":")
	if !isOutput(output) || tag != "F" && tag != "P" {
		return "", "", false, false
	}
	_, ok = rfc3339(at)
	return output, text, tag == "F", ok
}

// cutJSONFile reads {"log":"text\n","stream":"stdout","time":"2026-01-31T12:00:00.123456789Z"}; without
// \n the line goes on.
func cutJSONFile(line string) (output, text string, ends, ok bool) {
	if !strings.HasPrefix(line, `{"log":`) {
		return "", "", false, false
	}
	n, err := policy.ParseJSON(line)
	if err != nil {
		return "", "", false, false
	}
	for _, field := range n.Fields {
		switch field.Name {
		case "log":
			text = field.Value.Text
		case "stream":
			output = field.Value.Text
		}
	}
	text, ends = strings.CutSuffix(text, "\n")
	return output, strings.TrimSuffix(text, "\r"), ends, isOutput(output)
}

// isOutput bounds how many lines go on at once.
func isOutput(name string) bool { return name == "stdout" || name == "stderr" }
