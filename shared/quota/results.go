package quota

import "github.com/sluice-ratelimit/sluice/shared/wire"

// Results is a message from the service to a worker.
type Results struct {
	Results []AskResult
	Proxies uint32 // live proxies of the domain, 0 = not known
}

// The numbers of the fields of Results.
const (
	resultsResults = 1
	resultsProxies = 2
)

// Append appends the message's bytes to b.
func (m *Results) Append(b []byte) []byte {
	b = appendEach(b, resultsResults, m.Results, appendAskResult)
	return wire.AppendUint(b, resultsProxies, m.Proxies)
}

// Decode reads a message from its bytes. It uses the memory of the message that m
// held before, and keeps nothing of b. Fields that it does not know are skipped.
func (m *Results) Decode(b []byte) error {
	*m = Results{Results: m.Results[:0]}
	if len(b) > MaxMessageBytes {
		return errLong
	}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case resultsResults:
			decodeNext(&r, &m.Results, noMax, decodeAskResult)
		case resultsProxies:
			m.Proxies = r.Uint32()
		}
	}
	return r.Err()
}

// Outcome is what became of an ask.
type Outcome uint8

// The outcomes.
const (
	Granted     Outcome = 1 + iota
	Denied              // some part has too few units left
	Unavailable         // one of the keys could not be decided: its part has Failed
	Unknown             // a definition that the stream has not sent or the service has dropped
	// Busy: the service takes no more asks of this stream now, or a key has no room for another worker's report.
	Busy
)

// AskResult is the answer to an ask.
type AskResult struct {
	ID      uint32
	Outcome Outcome
	Grants  []Grant // one for each part, if Outcome is Granted, Denied or Unavailable
}

// The numbers of the fields of AskResult.
const (
	askResultID      = 1
	askResultOutcome = 2
	askResultGrants  = 3
)

func appendAskResult(b []byte, a *AskResult) []byte {
	b = wire.AppendUint(b, askResultID, a.ID)
	b = wire.AppendUint(b, askResultOutcome, a.Outcome)
	return appendEach(b, askResultGrants, a.Grants, appendGrant)
}

func decodeAskResult(a *AskResult, b []byte) error {
	*a = AskResult{Grants: a.Grants[:0]}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case askResultID:
			a.ID = r.Uint32()
		case askResultOutcome:
			a.Outcome = Outcome(r.Uint(1<<8 - 1))
		case askResultGrants:
			decodeNext(&r, &a.Grants, MaxParts, decodeGrant)
		}
	}
	return r.Err()
}

// Grant is what one part got, and how its key stands:
//
//	the part                         has, beside Windows
//	is granted units to spend        Units, Number, ValidNs; Leased if the rest may be kept
//	is granted units to hold         Units, ValidNs
//	asks for none, and has a block   ValidNs, also if it only reports. It is denied if its key is blocked
//	is denied                        Denied, WaitNs; HeldBack, Blocked
//	is not, but another part is      nothing
//	only reports, and has no block   nothing
//	only inspects                    nothing
//	has failed                       Failed, WaitNs, and Denied for proxies that do not know Failed; no Windows
//	has failed as the store starts   these and Starting
//
// A part with a Report may have Noted in each line. One that is denied in shadow denies no other.
type Grant struct {
	Number   uint32 // for Return; counts the stream's grants from 1, 0 if nothing was granted
	Units    uint32
	Leased   bool  // units may be kept for later requests; otherwise the rest goes back at once
	ValidNs  int64 // how long units may be spent, from the moment before the ask was sent
	Denied   bool
	Failed   bool  // the key was not decided: the store did not answer, or the key has more than MaxWindows
	WaitNs   int64 // if Denied: until the cost passes if nobody else asks; limit.Never. See also Starting
	HeldBack bool  // if Denied by a definition with a limit.Concurrency: only what is held leaves no room
	Blocked  bool  // if Denied: the key was blocked before
	Noted    bool  // the worker need not send the part's Report again
	Starting bool  // the store has no state yet: for WaitNs more, workers report what they hold
	Windows  []Standing
}

// The numbers of the fields of Grant.
const (
	grantNumber   = 1
	grantUnits    = 2
	grantValidNs  = 3
	grantDenied   = 4
	grantWaitNs   = 5
	grantWindows  = 6
	grantLeased   = 7
	grantFailed   = 8
	grantHeldBack = 9
	grantNoted    = 10
	grantStarting = 11
	grantBlocked  = 12
)

// appendGrant writes the windows last: a message's fields may come in any order.
func appendGrant(b []byte, g *Grant) []byte {
	b = wire.AppendUint(b, grantNumber, g.Number)
	b = wire.AppendUint(b, grantUnits, g.Units)
	b = wire.AppendUint(b, grantValidNs, g.ValidNs)
	b = wire.AppendBool(b, grantDenied, g.Denied)
	b = wire.AppendUint(b, grantWaitNs, g.WaitNs)
	b = wire.AppendBool(b, grantLeased, g.Leased)
	b = wire.AppendBool(b, grantFailed, g.Failed)
	b = wire.AppendBool(b, grantHeldBack, g.HeldBack)
	b = wire.AppendBool(b, grantNoted, g.Noted)
	b = wire.AppendBool(b, grantStarting, g.Starting)
	b = wire.AppendBool(b, grantBlocked, g.Blocked)
	return appendEach(b, grantWindows, g.Windows, appendStanding)
}

func decodeGrant(g *Grant, b []byte) error {
	*g = Grant{Windows: g.Windows[:0]}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case grantNumber:
			g.Number = r.Uint32()
		case grantUnits:
			g.Units = r.Uint32()
		case grantValidNs:
			g.ValidNs = r.Int64()
		case grantDenied:
			g.Denied = r.Bool()
		case grantWaitNs:
			g.WaitNs = r.Int64()
		case grantWindows:
			decodeNext(&r, &g.Windows, MaxWindows, decodeStanding)
		case grantLeased:
			g.Leased = r.Bool()
		case grantFailed:
			g.Failed = r.Bool()
		case grantHeldBack:
			g.HeldBack = r.Bool()
		case grantNoted:
			g.Noted = r.Bool()
		case grantStarting:
			g.Starting = r.Bool()
		case grantBlocked:
			g.Blocked = r.Bool()
		}
	}
	return r.Err()
}

// Standing is how one window of a key stands over all proxies.
type Standing struct {
	Used    uint32
	ResetNs int64 // until the window has forgotten what it has counted, from the answer on
}

// The numbers of the fields of Standing.
const (
	standingUsed    = 1
	standingResetNs = 2
)

func appendStanding(b []byte, s *Standing) []byte {
	b = wire.AppendUint(b, standingUsed, s.Used)
	return wire.AppendUint(b, standingResetNs, s.ResetNs)
}

func decodeStanding(s *Standing, b []byte) error {
	*s = Standing{}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case standingUsed:
			s.Used = r.Uint32()
		case standingResetNs:
			s.ResetNs = r.Int64()
		}
	}
	return r.Err()
}
