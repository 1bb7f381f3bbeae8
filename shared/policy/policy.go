// Package policy is the model of a rate-limit policy and the only place that
// decides whether one is valid. The command line, the control plane and the
// filter all call the same reader, so a policy that one of them accepts is
// accepted by the others.
//
// A problem here is a code and a place. The sentence that a person reads, and
// the warnings about valid policies, are the control plane's: policyfile.
//
// To read it, begin with this file, the model: Policy, Rule and their parts. Then:
//
//	read.go          the way of a document: Read walks the tables of fields and collects problems
//	shape.go         what a table is, and what a value looks like; scalar.go reads plain values
//	policyfields.go  the tables of the policy and its rules, and *fields.go those of their parts
//	document.go      the Nodes that a document is made of, and the place of each
//	problem.go       the codes of problems
//	counters.go      what rules that share a counter must agree on, checked after all are read
//
// What the filter and operations do with a policy:
//
//	subject.go       finds what a rule is for one key: a Finder fills in a Subject
//	limits.go        a rule's limits and windows, and limits that requests say
//	key.go           the kinds of key parts, and a Key of their values
//	keytext.go       keys and key parts as people write them
//	price.go         what tokens of a model cost
//	credential.go    which values are never printed
//	pattern.go       the texts and expressions of match and overrides
//	duration.go      durations, periods and calendar months as text
//
// It imports limit, state and quota for a rule's windows, keys and leases. It must build for
// wasm: no net, no net/http, no encoding/json, no fmt, no reflection.
package policy

import (
	"net/netip"

	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Version is the policy version this build reads.
const Version = 1

// MaxBytes is the largest policy text, one MiB: xDS messages end at four.
const MaxBytes = 1 << 20

// Policy is a whole, valid policy with every default filled in.
type Policy struct {
	Revision string // set by the control plane, empty in a file; makes every pushed configuration differ
	Domain   string // namespace of the counters
	Headers  Headers
	Quota    *Quota // nil = not given, and no rule of scope cluster needs it
	Rules    []Rule
	Exempt   []Match // no rule judges a request for which one of them holds
	Manage   *Manage // nil = no management requests
	Usage    *Usage  // nil = clients cannot ask for their usage

	Expressions     int // how many different regular expressions it has
	ExpressionBytes int // memory of their automata

	ReportKeys   ReportKeys
	ReportSecret string // of the hashes that ReportKeys asks for; set by the control plane, empty in a file
}

// ReportKeys says how the keys that are denied most are reported.
type ReportKeys string

// The choices of report_keys.
const (
	ReportHash  ReportKeys = "hash"
	ReportPlain ReportKeys = "plain"
	ReportOff   ReportKeys = "off"
)

// Quota says how the quota service is asked.
type Quota struct {
	Cluster   string // Envoy's cluster of the service
	TimeoutNs int64  // how long a request waits for an answer
}

// Headers says which rate-limit fields responses carry. Retry-After on a
// denial is independent of it.
type Headers string

// The choices of headers.
const (
	HeadersNone       Headers = "none"
	HeadersIETF       Headers = "ietf"        // RateLimit and RateLimit-Policy, draft 10
	HeadersXRateLimit Headers = "x-ratelimit" // X-RateLimit-*, draft 03
	HeadersBoth       Headers = "both"
)

// Rule limits the requests it matches, a counter for each key.
type Rule struct {
	Name       string
	Counter    string // identity of the counters; default Name
	Scope      Scope
	Match      Match
	Exempt     []Match   // the rule skips a request for which one of them holds
	Key        []KeyPart // none = one counter for all
	MissingKey MissingKey
	// MissingResponse is what a client gets that MissingDeny denies; nil with the other choices.
	MissingResponse *Response
	Limits          []Limit // none = always allowed
	Overrides       []Override
	Costs           []MatchedCost // the first whose match holds gives a request's cost
	Cost            Cost          // of other requests
	Settle          *Settle       // nil: the request is charged when it is decided
	HoldNs          int64         // the longest time without a sign of life; 0 = the rule holds nothing
	MaxHoldNs       int64         // ends renewal; 0 = none
	LingerNs        int64         // of Concurrency rules: a slot stays so long after the client's reset
	CountDenied     bool          // a request that this rule denies is counted too
	Block           *Block        // nil: a denied key may come back as soon as there is room
	Hidden          bool          // clients that ask for their usage are not told of the rule
	Mode            Mode
	// EnforcePercent is the share of keys on which denials are enforced; the
	// other keys act as in shadow mode.
	EnforcePercent uint8
	Capacity       uint32 // live keys
	OnFull         OnFull
	OnError        Failure
	OnContention   Failure
	Lease          uint32        // of ScopeCluster: quota.LeaseOff, quota.LeaseAuto or a number of units
	OnUnavailable  OnUnavailable // of ScopeCluster
	Response       Response      // what a denied client gets
}

// Block denies a key's every request for ForNs once a request of it was denied because of the
// rule's limits. With Prolong each denied request begins it anew.
type Block struct {
	ForNs   int64
	Prolong bool
}

// Scope says over what a limit holds.
type Scope string

// The choices of scope.
const (
	ScopeProxy   Scope = "proxy"
	ScopeCluster Scope = "cluster" // over all proxies of a domain that ask the same quota service
)

// OnUnavailable says what decides while the quota service is silent.
type OnUnavailable string

// The choices of on_unavailable.
const (
	UnavailableLocal OnUnavailable = "local" // a counter of this proxy, at its share of the limit
	UnavailableAllow OnUnavailable = "allow"
	UnavailableDeny  OnUnavailable = "deny"
)

// Match holds when every list that is not empty has an entry that holds.
type Match struct {
	Hosts     []string // exact or "*.suffix", as CanonicalHost has them
	Methods   []string
	Paths     []Pattern // of the unescaped path; the texts are unescaped too, apart from Regexp
	Headers   []HeaderMatch
	ClientIPs []netip.Prefix // masked, no IPv4-mapped ones
}

// HeaderMatch is a predicate on one request header; Name is lower case.
type HeaderMatch struct {
	Name  string
	Value Pattern
}

// PatternKind says how a Pattern compares.
type PatternKind uint8

// The notations of a pattern.
const (
	Exact   PatternKind = 1 + iota
	Prefix              // "abc*"
	Suffix              // "*abc", headers and overrides only
	Regexp              // "~re", RE2, matched in full
	Present             // "*", headers only
	Absent              // "!", headers only
	Any                 // "*", overrides only: also a key part that the request lacks
)

// Pattern is one string predicate. Text is what is compared, without the
// notation's own signs ("=", "~", "*", "!").
type Pattern struct {
	Kind      PatternKind
	Text      string
	Automaton *automaton.Automaton // of Regexp; equal expressions share it
}

// Limit is one window of a rule.
type Limit struct {
	Name string // may be empty: then its index names it
	limit.Window
	Requested *RequestedLimit // the request says the limit; nil: the policy does
}

// RequestedLimit is the part of a request that says a limit.
type RequestedLimit struct {
	Part    KeyPart // header, jwt or property
	Default uint32  // if the request says no whole number; the Window's Limit, too
	Max     uint32  // of a larger number
}

// Override gives the keys it matches other limits than the rule's. The first
// override that matches a key holds.
type Override struct {
	Name      string    // empty: it has none
	Key       []Pattern // one for each key part
	Unlimited bool      // these keys are not counted at all
	// Limits are the rule's windows in the same order, with other numbers. A
	// window that the override leaves out is Unlimited. Empty with Unlimited.
	Limits []Limit
}

// Cost is how many units a request takes. Without Header, Query and RequestBytes it is
// Fixed.
type Cost struct {
	Fixed        uint32
	Header       string // lower case
	Query        string // parameter
	Default      uint32
	Min          uint32
	Max          uint32
	RequestBytes *ByteCost // nil = not so
}

// IsFixed reports whether every request costs the same.
func (c *Cost) IsFixed() bool { return c.Header == "" && c.Query == "" && c.RequestBytes == nil }

// Least is the least that a request may cost.
func (c *Cost) Least() uint32 {
	if c.RequestBytes != nil {
		return c.RequestBytes.Min
	}
	return max(c.Fixed, c.Min)
}

// LeastCost is the least that any request costs in the rule.
func (r *Rule) LeastCost() uint32 {
	least := r.Cost.Least()
	for i := range r.Costs {
		least = min(least, r.Costs[i].Cost.Least())
	}
	return least
}

// ChargesBeyondHold reports whether an answer may be charged more than its request held.
func (r *Rule) ChargesBeyondHold() bool {
	return r.Settle != nil && r.Settle.To != SettleCost && r.Settle.Max > r.LeastCost()
}

// ByteCost is a unit for each PerUnit bytes of the request's body, the last ones rounded
// up, from Min to Max. A body without content-length costs Max. A request that ends with its
// headers has 0 bytes.
type ByteCost struct{ PerUnit, Min, Max uint32 }

// MayHaveBody reports whether a request of that method is taken to have a body if nothing
// else of it is known, as from a line in a log.
func MayHaveBody(method string) bool {
	return method == "POST" || method == "PUT" || method == "PATCH"
}

// MatchedCost is the cost of the requests that match.
type MatchedCost struct {
	Match Match
	Cost  Cost
}

// Mode says what a rule's denial does.
type Mode string

// The choices of mode.
const (
	ModeEnforce Mode = "enforce"
	ModeShadow  Mode = "shadow" // decides, counts and reports, never denies
	ModeOff     Mode = "off"
)

// MissingKey says what happens to a request that lacks a key part.
type MissingKey string

// The choices of missing_key.
const (
	MissingSkip  MissingKey = "skip"  // the rule does not apply
	MissingDeny  MissingKey = "deny"  // denied, without Retry-After
	MissingShare MissingKey = "share" // all such requests share a counter; missing ≠ empty
)

// OnFull says what happens to a new key whose page is full.
type OnFull string

// The choices of on_full.
const (
	FullInherit OnFull = "inherit" // evict the key that uses least; the new key starts from the floor
	FullDeny    OnFull = "deny"
	FullAllow   OnFull = "allow"
)

// Failure is the verdict if the rule could not decide.
type Failure string

// The choices of on_error and on_contention.
const (
	FailAllow Failure = "allow"
	FailDeny  Failure = "deny"
)

// Response is what a denied client gets.
type Response struct {
	Status      uint16 // 400 to 599
	Body        Template
	ContentType string // empty = text/plain, which the proxy says by itself
	Headers     []ResponseHeader
	GRPCStatus  uint8 // 1 to 16
	RetryInfo   bool  // a denial with a known wait says it as google.rpc.RetryInfo, too
}

// ResponseHeader is one header of a denial; Name is lower case.
type ResponseHeader struct {
	Name  string
	Value Template
}

// Template is a text with placeholders; nil is the empty text.
type Template []TemplatePart

// TemplatePart is literal Text, or a value if Value is set.
type TemplatePart struct {
	Text  string
	Value Placeholder
}

// Placeholder is what the filter writes in the place of %NAME%.
type Placeholder uint8

// What a response may say of the denial.
const (
	NoValue         Placeholder = iota // literal text
	ValueRule                          // the rule's name
	ValueRetryAfter                    // seconds, as in Retry-After
	ValueLimit                         // the limit of the window with least remaining
	ValueRemaining                     // what that window has left
	ValueMissing                       // the parts of the key that the request lacks
)

// DefaultResponse is the response of a rule that gives none, and of a denial
// that no rule caused.
func DefaultResponse() Response {
	return Response{
		Status: 429, Body: Template{{Text: "rate limit exceeded"}}, GRPCStatus: 8, // RESOURCE_EXHAUSTED
	}
}

// Manage turns on management requests.
type Manage struct {
	Path        string   // starts and ends with "/"
	TokenSHA256 [32]byte // of the bearer token
	Port        uint16   // 0 = any local port
}

// Usage lets clients ask how much of their limits they have used.
type Usage struct {
	Path string // unescaped
}

// Settle says what a request really cost, when its answer is known.
type Settle struct {
	To       Settled // what is charged
	Field    string  // of SettleHeader and SettleTrailer: the name, lower case
	Prices   []Price // of SettlePrice: the first that fits the model counts
	When     Answer
	Unknown  Unknown
	Max      uint32 // of one settlement, whatever was held; math.MaxUint32 = none
	Identity bool   // takes accept-encoding off the request
}

// Settled is what an answer charges.
type Settled string

// The choices of settle.to; SettleHeader and SettleTrailer are objects with the name.
const (
	SettleCost          Settled = "cost" // what was held
	SettleTokens        Settled = "tokens"
	SettleInputTokens   Settled = "input_tokens"
	SettleOutputTokens  Settled = "output_tokens"
	SettlePrice         Settled = "price" // of tokens
	SettleRequestBytes  Settled = "request_bytes"
	SettleResponseBytes Settled = "response_bytes"
	SettleMilliseconds  Settled = "milliseconds"
	SettleHeader        Settled = "header"
	SettleTrailer       Settled = "trailer"
)

// Tokens reports whether the text of the answer says the charge.
func (s Settled) Tokens() bool {
	return s == SettleTokens || s == SettleInputTokens || s == SettleOutputTokens || s == SettlePrice
}

// Unknown says what is charged if the answer should have said the cost and did not.
type Unknown string

// The choices of settle.unknown.
const (
	UnknownEstimate Unknown = "estimate" // of tokens and their price alone
	UnknownCost     Unknown = "cost"     // what was held
	UnknownNothing  Unknown = "0"
)

// Answer says which answers cost anything; all that is given must hold.
type Answer struct {
	Status     []StatusRange // none = every status
	GRPCStatus []uint8       // none = every
	Headers    []HeaderMatch // of the answer
	NoAnswer   bool          // no answer meets it
}

// StatusRange is a range of HTTP statuses with both ends.
type StatusRange struct{ Low, High uint16 }

// Concurrency reports whether the rule limits how many requests run at once. Its one
// window has HoldNs as its period.
func (r *Rule) Concurrency() bool {
	return len(r.Limits) == 1 && r.Limits[0].Algorithm == limit.Concurrency
}

// Holds reports whether a request holds its cost until its answer is known.
func (r *Rule) Holds() bool { return r.Settle != nil || r.Concurrency() }
