package testfile

import (
	"math"
	"strconv"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/policytest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func integerShape(low, high int64) policy.Shape {
	return policy.Shape{Form: policy.FormInteger, Min: low, Max: high}
}

func objectShape(name string) policy.Shape { return policy.Shape{Form: policy.FormObject, Of: name} }

func listShape(item policy.Shape, least, most int64) policy.Shape {
	return policy.Shape{Form: policy.FormList, Of: item.Of, Min: least, Max: most, Any: []policy.Shape{item}}
}

func wordShape(words ...string) policy.Shape {
	return policy.Shape{Form: policy.FormWord, Words: words}
}

// choiceShape is a value of which package message, and the schema, know the form by its name.
func choiceShape(of string) policy.Shape { return policy.Shape{Form: policy.FormChoice, Of: of} }

func required(s policy.Shape) policy.Shape {
	s.Required = true
	return s
}

var (
	textShape     = policy.Shape{Form: policy.FormText}
	bodyShape     = policy.Shape{Form: policy.FormText, Of: "any_text"}
	nameShape     = policy.Shape{Form: policy.FormName}
	boolShape     = policy.Shape{Form: policy.FormBool}
	durationShape = policy.Shape{Form: policy.FormDuration}
	unitsShape    = integerShape(0, math.MaxUint32)
	keyShape      = listShape(bodyShape, 0, policy.MaxKeyParts)
)

// The rows of an object are read in the table's order, not in the file's. In this one proxies, policy
// and request stand before tests, because steps are checked against the first two and begin with the third.
var fileObject = &object[File]{"tests", []field[File]{
	{"version", required(integerShape(Version, Version)), "Version of this format.", readVersion},
	{"policy", required(textShape), "File of the policy, from the folder of this file.", readPolicy},
	{"start", choiceShape("time"), "When each test starts, by the proxies' clock; default 2026-01-01T00:00:00Z.",
		readStart},
	{"proxies", integerShape(1, maxProxies), "How many proxies there are; default 1. Rules of scope cluster ask one " +
		"quota service.", readProxies},
	{"request", objectShape("test_request"), "What each request has, unless a test or a step says otherwise.",
		readFileRequest},
	{"tests", required(listShape(objectShape("test"), 1, maxTests)), "The tests. Each starts with empty counters.",
		readTests},
}}

func readVersion(r *reader, n *policy.Node, shape policy.Shape, _ *File) { r.integer(n, shape) }

func readStart(r *reader, n *policy.Node, shape policy.Shape, f *File) {
	at, err := time.Parse(time.RFC3339Nano, n.Text)
	if n.Kind != policy.String || err != nil || !fleet.IsTime(at) {
		r.failAs(n, policy.WrongValue, shape)
		return
	}
	f.start = at.UTC()
}

func readProxies(r *reader, n *policy.Node, shape policy.Shape, f *File) {
	f.proxies = int(r.integer(n, shape))
}

func readFileRequest(r *reader, n *policy.Node, _ policy.Shape, f *File) {
	readRequest(r, n, &f.request)
}

func readTests(r *reader, n *policy.Node, shape policy.Shape, f *File) {
	lines := map[string]int{}
	r.each(n, shape, func(item *policy.Node) {
		r.running = map[string]bool{}
		t := Test{Line: item.Line, request: f.request}
		if !readObject(r, item, testObject, &t) {
			return
		}
		first, isTwice := lines[t.Name]
		if isTwice && t.Name != "" {
			r.fail(item.Member("name"), "the test in line "+strconv.Itoa(first)+" has this name too: names must differ")
		}
		lines[t.Name] = item.Line
		f.Tests = append(f.Tests, t)
	})
}

// A test's request stands before its steps, whose requests begin with it.
var testObject = &object[Test]{"test", []field[Test]{
	{"name", required(nameShape), "Unique in the file. It says what must hold.", readName},
	{"request", objectShape("test_request"), "What each request of the test has, unless a step says otherwise.",
		readTestRequest},
	{"steps", required(listShape(objectShape("step"), 1, maxSteps)), "What happens, in order.", readSteps},
}}

func readName(r *reader, n *policy.Node, _ policy.Shape, t *Test) { t.Name = r.name(n) }

func readTestRequest(r *reader, n *policy.Node, _ policy.Shape, t *Test) {
	readRequest(r, n, &t.request)
}

func readSteps(r *reader, n *policy.Node, shape policy.Shape, t *Test) {
	r.each(n, shape, func(item *policy.Node) { readStep(r, item, t) })
}

var counterObject = &object[policytest.Counter]{"counter", []field[policytest.Counter]{
	{"rule", required(nameShape), "Name of the rule.", readCounterRule},
	{"key", keyShape, "The parts of the key, in the rule's order; none for a rule without a key.", readCounterKey},
}}

func readCounterRule(r *reader, n *policy.Node, _ policy.Shape, c *policytest.Counter) {
	c.Rule, _ = r.text(n)
}

func readCounterKey(r *reader, n *policy.Node, shape policy.Shape, c *policytest.Counter) {
	r.each(n, shape, func(item *policy.Node) { c.Key = append(c.Key, r.anyText(item)) })
}

var setObject = &object[step]{"set_counter", []field[step]{
	{"rule", required(nameShape), "Name of the rule.", readSetRule},
	{"key", keyShape, "The parts of the key, in the rule's order; none for a rule without a key.", readSetKey},
	{"units", required(unitsShape), "What is used from then on.", readSetUnits},
	{"window", nameShape, "Name or index of one window; by default all.", readSetWindow},
}}

func readSetRule(r *reader, n *policy.Node, shape policy.Shape, s *step) {
	readCounterRule(r, n, shape, s.set)
}

func readSetKey(r *reader, n *policy.Node, shape policy.Shape, s *step) {
	readCounterKey(r, n, shape, s.set)
}

func readSetUnits(r *reader, n *policy.Node, shape policy.Shape, s *step) {
	s.units = uint32(r.integer(n, shape))
}

func readSetWindow(r *reader, n *policy.Node, _ policy.Shape, s *step) { s.set.Window, _ = r.text(n) }

func readCounter(r *reader, n *policy.Node, c *policytest.Counter) {
	if readValid(r, n, counterObject, c) {
		r.checkCounter(n, c)
	}
}

// checkCounter checks a counter against the policy, and returns its rule if there is one.
func (r *reader) checkCounter(n *policy.Node, c *policytest.Counter) *policy.Rule {
	rule := r.ruleNamed(n.Member("rule"), c.Rule)
	if rule == nil {
		return nil
	}
	var key policy.Key
	if err := rule.ParseKey(&key, c.Key); err != nil {
		at := n
		if n.Member("key") != nil {
			at = n.Member("key")
		}
		r.fail(at, err.Error())
	}
	if rule.Mode == policy.ModeOff {
		r.fail(n.Member("rule"), "the rule "+strconv.Quote(c.Rule)+" has mode off, and counts nothing")
	}
	if c.Window != "" && rule.LimitNamed(c.Window) < 0 {
		r.fail(n.Member("window"), "the rule "+strconv.Quote(c.Rule)+" has no window "+strconv.Quote(c.Window)+
			": write the name of one, or its index from 0")
	}
	return rule
}
