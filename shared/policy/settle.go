package policy

import "github.com/sluice-ratelimit/sluice/shared/limit"

// Settle says what a request really cost, once its answer is known.
type Settle struct {
	To       Settled // what is charged
	Field    string  // of SettleHeader and SettleTrailer: the name, lower case
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
	SettleRequestBytes  Settled = "request_bytes"
	SettleResponseBytes Settled = "response_bytes"
	SettleMilliseconds  Settled = "milliseconds"
	SettleHeader        Settled = "header"
	SettleTrailer       Settled = "trailer"
)

// Tokens reports whether the text of the answer says what is charged.
func (s Settled) Tokens() bool {
	return s == SettleTokens || s == SettleInputTokens || s == SettleOutputTokens
}

// Unknown says what is charged where the answer should have said it and did not.
type Unknown string

// The choices of settle.unknown.
const (
	UnknownEstimate Unknown = "estimate" // of tokens alone
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
