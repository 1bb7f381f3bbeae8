package testfile

import (
	"cmp"
	"fmt"
	"math"
	"slices"
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

var stepObject = &object[step]{"step", []field[step]{
	{"after", durationShape, "Time that passes before the step.", readAfter},
	{"request", objectShape("test_request"), "A request, as far as it differs from the test's. A step that has none of " +
		"request, answer with to, counter, set and reset sends the test's request.", readStepRequest},
	{"times", integerShape(1, maxTimes), "How often the request is sent; default 1.", readTimes},
	{"proxy", integerShape(0, maxProxies-1), "Which proxy gets the request, or has the counter, from 0. By default " +
		"requests go to the proxies in turn.", readProxy},
	{"fail", wordShape("quota", "get", "set"), "What fails meanwhile. quota: the quota service cannot be reached. get, " +
		"set: the filter cannot read or write counters.", readFail},
	{"answer", objectShape("test_answer"), "How the upstream answers the request; by default at once with 200 and no " +
		"body. With to: how it answers requests that run.", readStepAnswer},
	{"running", nameShape, "Lets the request run until a step with answer: {to: this name}.", readRunning},
	{"counter", objectShape("counter"), "Reads a counter, for expect.", readStepCounter},
	{"set", objectShape("set_counter"), "Sets what is used of a counter.", readSet},
	{"reset", objectShape("counter"), "Empties a counter.", readReset},
	{"expect", objectShape("expect"), "What must hold of each request, of the answer or of the counter.", readExpect},
	{"last", objectShape("expect"), "What must hold of the last request of times, beside expect.", readLast},
}}

func readAfter(r *reader, n *policy.Node, _ policy.Shape, s *step) { s.afterNs = r.duration(n) }

func readStepRequest(r *reader, n *policy.Node, _ policy.Shape, s *step) {
	readRequest(r, n, s.request)
}

func readTimes(r *reader, n *policy.Node, shape policy.Shape, s *step) {
	s.times = int(r.integer(n, shape))
}

func readProxy(r *reader, n *policy.Node, shape policy.Shape, s *step) {
	proxy := int(r.integer(n, shape))
	if proxy >= r.file.proxies {
		r.fail(n, "there is no proxy "+strconv.Itoa(proxy)+": the file has proxies: "+strconv.Itoa(r.file.proxies)+
			", and they count from 0")
	}
	s.proxy = &proxy
}

func readFail(r *reader, n *policy.Node, shape policy.Shape, s *step) {
	s.fault = policytest.Fault(r.word(n, shape))
}

func readStepAnswer(r *reader, n *policy.Node, _ policy.Shape, s *step) {
	s.answer = &policytest.Answer{}
	readAnswer(r, n, &answerOf{Answer: s.answer, to: &s.to})
	if s.to != "" {
		s.does(answerStep)
	}
}

func readRunning(r *reader, n *policy.Node, _ policy.Shape, s *step) { s.running = r.name(n) }

func readStepCounter(r *reader, n *policy.Node, _ policy.Shape, s *step) {
	s.does(countStep)
	s.count = &policytest.Counter{}
	readCounter(r, n, s.count)
}

func readSet(r *reader, n *policy.Node, _ policy.Shape, s *step) {
	s.does(setStep)
	s.set = &policytest.Counter{}
	if !readValid(r, n, setObject, s) {
		return
	}
	rule := r.checkCounter(n, s.set)
	if rule != nil && rule.Concurrency() {
		r.fail(n.Member("rule"), "the rule "+strconv.Quote(rule.Name)+" counts running requests, which set cannot change: "+
			"send requests with running")
	}
}

func readReset(r *reader, n *policy.Node, _ policy.Shape, s *step) {
	s.does(resetStep)
	s.reset = &policytest.Counter{}
	readCounter(r, n, s.reset)
}

func readExpect(r *reader, n *policy.Node, _ policy.Shape, s *step) {
	readObject(r, n, expectObject, &s.expect)
}

func readLast(r *reader, n *policy.Node, _ policy.Shape, s *step) {
	readObject(r, n, expectObject, &s.last)
}

// readStep reads a step and checks that its fields go together.
func readStep(r *reader, n *policy.Node, t *Test) {
	request := t.request
	s := step{line: n.Line, times: 1, request: &request}
	if !readObject(r, n, stepObject, &s) {
		return
	}
	s.checkKind(r, n)
	s.checkRunning(r, n)
	s.checkExpected(r, n)
	s.request.Fault = s.fault
	if s.kind == sendStep {
		s.request.Answer = s.answer
	}
	s.setProxy()
	t.steps = append(t.steps, s)
}

// setProxy names the proxy of the step where package policytest looks for it.
func (s *step) setProxy() {
	s.request.Proxy = s.proxy
	for _, counter := range []*policytest.Counter{s.count, s.set, s.reset} {
		if counter != nil {
			counter.Proxy = s.proxy
		}
	}
}

// checkKind rejects fields that do not go with the kind of the step.
func (s *step) checkKind(r *reader, n *policy.Node) {
	for i := range n.Fields {
		f := &n.Fields[i]
		goes := f.Name == "after" || slices.Contains(stepFields[s.kind], f.Name)
		if stepObject.has(f.Name) && !goes {
			r.failField(n, f, "does not go with "+s.kind.String()+": make it a step of its own, or remove it")
		}
	}
}

// checkRunning keeps the names of the requests that run, and rejects an answer to one that does not.
func (s *step) checkRunning(r *reader, n *policy.Node) {
	answer := n.Member("answer")
	switch {
	case s.running != "" && s.answer != nil && s.to == "":
		r.fail(answer, "does not go with running: a later step answers the request, with answer: {to: "+s.running+"}")
	case s.running != "" && r.running[s.running]:
		r.fail(n.Member("running"), "a request of this name runs already: give this one another name")
	case s.running != "":
		r.running[s.running] = true
	case s.to != "" && !r.running[s.to]:
		r.fail(answer.Member("to"), "no step before has running: "+s.to+", or its request is answered already")
	case s.to != "":
		delete(r.running, s.to)
	}
}

// checkExpected rejects what is expected of a request and is a counter's, or the other way round.
func (s *step) checkExpected(r *reader, n *policy.Node) {
	if s.kind == countStep && n.Member("expect") == nil {
		r.fail(n.Member("counter"), "is read for nothing: write expect beside it, with what must hold of it")
	}
	for _, name := range []string{"expect", "last"} {
		node := n.Member(name)
		switch {
		case node == nil || node.Kind != policy.Object:
		case r.isEmpty(node):
		case s.kind == countStep:
			r.rejectVerdict(node)
			r.checkWindows(node.Member("windows"), s.count.Rule)
			r.checkOnlyOf(node, s.count.Rule)
		default:
			r.rejectCount(node)
		}
	}
}

// ofCounter are the fields of expect in a step that reads a counter. Those of onlyOfCounter go with nothing else.
var (
	ofCounter     = []string{"used", "remaining", "held", "leased", "blocked", "windows"}
	onlyOfCounter = []string{"used", "leased", "blocked", "windows"}
)

// rejectVerdict rejects what is expected of a counter and is a request's.
func (r *reader) rejectVerdict(n *policy.Node) {
	for i := range n.Fields {
		f := &n.Fields[i]
		if expectObject.has(f.Name) && !slices.Contains(ofCounter, f.Name) {
			r.failField(n, f, "a counter has none: expect used, remaining, held, leased, blocked or windows of it")
		}
	}
}

// rejectCount rejects what is expected of a request and is a counter's.
func (r *reader) rejectCount(n *policy.Node) {
	for i := range n.Fields {
		f := &n.Fields[i]
		if slices.Contains(onlyOfCounter, f.Name) {
			r.failField(n, f, "only a counter has it: read the counter in a step of its own, with counter: {rule: …}")
		}
	}
}

// checkWindows rejects windows that the rule of a counter does not have.
func (r *reader) checkWindows(n *policy.Node, name string) {
	rule := r.rule(name)
	if n == nil || rule == nil { // an unknown rule is another problem
		return
	}
	for i := range n.Fields {
		f := &n.Fields[i]
		if rule.LimitNamed(f.Name) < 0 {
			r.failField(n, f, fmt.Sprintf("the rule %q has no such window: write the name of one, or its index from 0", name))
		}
	}
}

// checkOnlyOf rejects fields that the counters of a rule have no value for.
func (r *reader) checkOnlyOf(n *policy.Node, name string) {
	rule := r.rule(name)
	if rule == nil { // which is another problem
		return
	}
	used, leased := n.Member("used"), n.Member("leased")
	blocked := n.Member("blocked")
	if used != nil && len(rule.Limits) > 1 {
		r.fail(used, fmt.Sprintf("the rule %q has %d windows: write windows: {%q: {used: …}}",
			name, len(rule.Limits), cmp.Or(rule.Limits[0].Name, "0")))
	}
	if leased != nil && rule.Scope != policy.ScopeCluster {
		r.fail(leased, fmt.Sprintf("the rule %q has not the scope cluster, so nothing of it is leased", name))
	}
	if blocked != nil && rule.Block == nil {
		r.fail(blocked, fmt.Sprintf("the rule %q has no block", name))
	}
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
