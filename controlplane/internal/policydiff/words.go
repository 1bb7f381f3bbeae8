package policydiff

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// maxShown is the longest value that Words repeats.
const maxShown = 80

// Words says how one policy differs from another, a sentence for each field and rule.
// Both are valid.
func Words(before, after *policy.Node) []string {
	words := fields("", before, after, "rules")
	old, now := named(before.Member("rules")), named(after.Member("rules"))
	var kept, was []string
	for _, name := range now.names {
		rule := "rule " + strconv.Quote(name)
		if old.rules[name] == nil {
			words = append(words, rule+" is new")
			continue
		}
		kept = append(kept, name)
		words = append(words, fields(rule+": ", old.rules[name], now.rules[name], "")...)
	}
	for _, name := range old.names {
		if now.rules[name] == nil {
			words = append(words, "rule "+strconv.Quote(name)+" is gone")
			continue
		}
		was = append(was, name)
	}
	if !slices.Equal(kept, was) {
		words = append(words, "the order of the rules changes")
	}
	return words
}

// list is a policy's rules by name.
type list struct {
	names []string
	rules map[string]*policy.Node
}

func named(rules *policy.Node) list {
	l := list{rules: map[string]*policy.Node{}}
	if rules == nil {
		return l
	}
	for _, rule := range rules.Items {
		if name := rule.Member("name"); name != nil {
			l.names = append(l.names, name.Text)
			l.rules[name.Text] = rule
		}
	}
	return l
}

// fields says which fields of two objects differ, but for one.
func fields(of string, before, after *policy.Node, except string) (words []string) {
	for _, f := range after.Fields {
		if f.Name == except {
			continue
		}
		value := before.Member(f.Name)
		switch {
		case value == nil:
			words = append(words, of+f.Name+" "+shown(f.Value)+" is new")
		case !bytes.Equal(policy.AppendJSON(nil, value), policy.AppendJSON(nil, f.Value)):
			words = append(words, of+f.Name+" "+shown(value)+" → "+shown(f.Value))
		}
	}
	for _, f := range before.Fields {
		if f.Name != except && after.Member(f.Name) == nil {
			words = append(words, of+f.Name+" "+shown(f.Value)+" is left out")
		}
	}
	return words
}

func shown(value *policy.Node) string {
	text := []rune(string(policy.AppendJSON(nil, value)))
	if len(text) > maxShown {
		return string(text[:maxShown]) + "…"
	}
	return string(text)
}
