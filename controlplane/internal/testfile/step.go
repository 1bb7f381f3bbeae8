package testfile

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/policytest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// step is one step of a test. It has the fields of its kind.
type step struct {
	kind    stepKind
	line    int
	afterNs int64
	times   int

	request *policytest.Request
	running string // name of the requests, if they are not answered at once

	to     string // name of the running requests that the answer is for
	answer *policytest.Answer

	count, set, reset *policytest.Counter // one of them, by the kind
	units             uint32              // of set

	proxy  *int
	fault  policytest.Fault
	expect expectation // of each time
	last   expectation // of the last time
}

// stepKind is what a step does. Several kinds, joined by |, are those that take a field.
type stepKind int

// The kinds. A step with fields of two is of the later one here, and the other's fields are rejected.
const (
	sendStep   stepKind = 1 << iota // sends requests
	answerStep                      // answers requests that run
	resetStep
	setStep
	countStep
)

var anyStep = sendStep | answerStep | resetStep | setStep | countStep

// String is the kind as a message names it: by the field that makes a step be of the kind.
func (k stepKind) String() string {
	switch k {
	case answerStep:
		return "answer with to"
	case resetStep:
		return "reset"
	case setStep:
		return "set"
	case countStep:
		return "counter"
	default:
		return "request"
	}
}

// does is told of a field that says what the step does. Each kind's bit is greater than those of the kinds before
// it, so the later of two kinds is the greater number.
func (s *step) does(kind stepKind) { s.kind = max(s.kind, kind) }

// kindRow is a row of the table of step or of expect: a field, and before it the kinds of steps that take it.
type kindRow[T any] struct {
	kinds stepKind
	name  string
	shape policy.Shape
	text  string
	read  func(r *reader, n *policy.Node, shape policy.Shape, out *T)
}

// objectOf is the table of an object, from rows with kinds.
func objectOf[T any](name string, rows []kindRow[T]) *object[T] {
	o := &object[T]{name: name}
	for _, row := range rows {
		o.fields = append(o.fields, field[T]{row.name, row.shape, row.text, row.read})
	}
	return o
}

// kindsOf is what the row of a field says of kinds. known is false if no row has this name.
func kindsOf[T any](rows []kindRow[T], name string) (kinds stepKind, known bool) {
	for i := range rows {
		if rows[i].name == name {
			return rows[i].kinds, true
		}
	}
	return 0, false
}

var stepObject = objectOf("step", stepRows)

var stepRows = []kindRow[step]{
	{anyStep, "after", durationShape, "Time that passes before the step.", readAfter},
	{sendStep, "request", objectShape("test_request"),
		"A request, as far as it differs from the test's. A step that has none of request, answer with to, counter, set " +
			"and reset sends the test's request.", readStepRequest},
	{sendStep, "times", integerShape(1, maxTimes), "How often the request is sent; default 1.", readTimes},
	{anyStep &^ answerStep, "proxy", integerShape(0, maxProxies-1),
		"Which proxy gets the request, or has the counter, from 0. By default requests go to the proxies in turn.",
		readProxy},
	{sendStep, "fail", wordShape("quota", "get", "set"),
		"What fails meanwhile. quota: the quota service cannot be reached. get, set: the filter cannot read or write " +
			"counters.", readFail},
	{sendStep | answerStep, "answer", objectShape("test_answer"),
		"How the upstream answers the request; by default at once with 200 and no body. With to: how it answers requests " +
			"that run.", readStepAnswer},
	{sendStep, "running", nameShape, "Lets the request run until a step with answer: {to: this name}.", readRunning},
	{countStep, "counter", objectShape("counter"), "Reads a counter, for expect.", readStepCounter},
	{setStep, "set", objectShape("set_counter"), "Sets what is used of a counter.", readSet},
	{resetStep, "reset", objectShape("counter"), "Empties a counter.", readReset},
	{ofRequest | ofCounter, "expect", objectShape("expect"),
		"What must hold of each request, of the answer or of the counter.", readExpect},
	{sendStep, "last", objectShape("expect"), "What must hold of the last request of times, beside expect.", readLast},
}

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
	s := step{kind: sendStep, line: n.Line, times: 1, request: &request}
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
		if kinds, known := kindsOf(stepRows, f.Name); known && kinds&s.kind == 0 {
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
		case r.rejectEmpty(node):
		case s.kind == countStep:
			r.rejectVerdict(node)
			r.checkWindows(node.Member("windows"), s.count.Rule)
			r.checkOnlyOf(node, s.count.Rule)
		default:
			r.rejectCount(node)
		}
	}
}

// rejectVerdict rejects what is expected of a counter and is a request's.
func (r *reader) rejectVerdict(n *policy.Node) {
	for i := range n.Fields {
		f := &n.Fields[i]
		if kinds, known := kindsOf(expectRows, f.Name); known && kinds&countStep == 0 {
			r.failField(n, f, "a counter has none: expect "+wordsOfCounter+" of it")
		}
	}
}

// wordsOfCounter are the fields of expect that a counter has, as a message lists them.
const wordsOfCounter = "used, remaining, held, leased, blocked or windows"

// rejectCount rejects what is expected of a request and is a counter's.
func (r *reader) rejectCount(n *policy.Node) {
	for i := range n.Fields {
		f := &n.Fields[i]
		if kinds, known := kindsOf(expectRows, f.Name); known && kinds&ofRequest == 0 {
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
