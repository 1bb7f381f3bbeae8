package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// policy is a block of the page: ```yaml NAME.yaml, drawn where the page shows
// img/NAME.svg.
type policy struct {
	name, text string
	drawn      bool
}

var policyBlock = regexp.MustCompile("(?ms)^```yaml (\\w+)\\.yaml\n(.*?)^```$")

func policiesOf(page string) (list []policy) {
	for _, m := range policyBlock.FindAllStringSubmatch(page, -1) {
		list = append(list, policy{m[1], m[2], strings.Contains(page, "(img/"+m[1]+".svg)")})
	}
	return list
}

func admittedTable(runs []run) string {
	var b strings.Builder
	b.WriteString("| policy | admitted | most in any 10 s |\n|---|---|---|\n")
	for _, r := range runs {
		fmt.Fprintf(&b, "| `%s` | %d of %d | %d |\n", r.name, r.admitted(), len(r.requests), r.most())
	}
	return b.String()
}

// size is what validate says of a policy's memory.
type size struct {
	name  string
	Keys  uint64 `json:"keys"`
	Slots uint64 `json:"slots"`
	Bytes uint64 `json:"bytes"`
}

func (c command) validate(name, file string) (size, error) {
	out, err := c.output("validate", "-f", file, "--output", "json")
	if err != nil {
		return size{}, err
	}
	var v struct {
		Memory size `json:"memory"`
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return size{}, fmt.Errorf("read validate's output: %w", err)
	}
	v.Memory.name = name
	return v.Memory, nil
}

func memoryTable(sizes []size) string {
	var b strings.Builder
	b.WriteString("| policy | live keys | slots | at most | bytes a key |\n|---|---|---|---|---|\n")
	for _, s := range sizes {
		fmt.Fprintf(&b, "| `%s` | %d | %d | %.1f MiB | %d |\n", s.name, s.Keys, s.Slots, float64(s.Bytes)/(1<<20), (s.Bytes+s.Keys/2)/s.Keys)
	}
	return b.String()
}
