package replay

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
)

// Report is what a policy makes of a log. Its size is bounded by the number of rules.
type Report struct {
	Log      accesslog.Stats `json:"log"`
	Status   Status          `json:"status"`
	Proxies  int             `json:"proxies"`
	Warnings []string        `json:"warnings,omitempty"`
	Timeline Timeline        `json:"timeline"`
	Outcome                  // of the policy
	Against  *Outcome        `json:"against,omitempty"` // of the other policy
}

// Status is what the log says of the answers.
type Status struct {
	Denied int64 `json:"denied"` // lines with status 429
}

// Timeline says which time each element of a series stands for. All series of a
// report have the same.
type Timeline struct {
	StartNs int64 `json:"start_ns"` // of the first element
	WidthNs int64 `json:"width_ns"` // of each
	Count   int   `json:"count"`    // of elements, at most MaxPoints
}

// MaxPoints is the most elements that a series has.
const MaxPoints = 240

// Outcome is what one policy decided.
type Outcome struct {
	Policy string `json:"policy"` // the file
	Denied int64  `json:"denied"` // requests
	Again  int64  `json:"again"`  // lines of these with status 429
	// Alone counts requests that this policy denies and the other does not.
	Alone int64 `json:"alone,omitempty"`
	// Shadow counts requests that are not denied, and would be if all rules were enforced.
	Shadow int64 `json:"shadow_denied"`
	// ShadowAlone counts such requests that the other policy does not deny in shadow either.
	ShadowAlone int64  `json:"shadow_alone,omitempty"`
	Rules       []Rule `json:"rules"`
}

// Rule is what one rule decided on the requests that it is for.
type Rule struct {
	Rule     string   `json:"rule"`
	Mode     string   `json:"mode"`
	Key      []string `json:"key"`
	Requests int64    `json:"requests"`
	Denied   int64    `json:"denied"`
	Again    int64    `json:"again"`         // denied, and answered 429 by the log
	Shadow   int64    `json:"shadow_denied"` // would be denied if the rule were enforced
	// Elsewhere are denied by other rules and not by this one, in which they do not count.
	Elsewhere int64            `json:"denied_by_others"`
	Reasons   map[string]int64 `json:"reasons"` // of denials, and of requests that were not counted

	Clients int64 `json:"clients"` // different keys
	// DeniedClients were denied at least once, enforced or in shadow.
	DeniedClients int64 `json:"denied_clients"`
	// Uncounted are requests of clients beyond MaxClients, which are not told apart.
	Uncounted int64 `json:"uncounted,omitempty"`

	Series Series   `json:"series"`
	Use    []Use    `json:"use,omitempty"` // by limit; none where a request costs a varying number of units
	Top    []Client `json:"top"`           // the most denied

	// Alone counts requests that the other policy allows. ShadowAlone counts requests denied in
	// shadow that the other policy allows in shadow, too.
	Alone       Alone `json:"alone,omitzero"`
	ShadowAlone Alone `json:"shadow_alone,omitzero"`
}

// Alone is what one rule denies of what the other policy does not.
type Alone struct {
	Requests int64    `json:"requests"`
	Clients  int64    `json:"clients"`
	Top      []Client `json:"top"`
}

// Series count requests over the report's timeline, each in one of them.
type Series struct {
	Allowed   []int64 `json:"allowed"`
	Denied    []int64 `json:"denied"`
	Shadow    []int64 `json:"shadow_denied"`
	Elsewhere []int64 `json:"denied_by_others"`
}

// Client is one key of a rule.
type Client struct {
	Key      []*string `json:"key"` // nil: the requests lack the part
	Requests int64     `json:"requests"`
	Denied   int64     `json:"denied"` // enforced or in shadow; in Alone, by this policy alone
}

// Use is how many units clients asked for in a limit's period, denied ones
// included, in aligned periods.
type Use struct {
	Limit    string  `json:"limit"`          // name or index
	Units    uint32  `json:"units"`          // that the limit allows at most at once
	From     string  `json:"from,omitempty"` // where requests say the limit; Units is its max
	Requests float64 `json:"requests"`       // that it lets through in a period on average: a bucket's rate, by the cost
	PeriodNs int64   `json:"period_ns"`
	Months   int64   `json:"months,omitempty"` // of a window of months: PeriodNs has 31 days for each
	Distribution
}

// Distribution is over all periods of all clients that have a request.
type Distribution struct {
	Periods int64  `json:"periods"`
	P50     uint32 `json:"p50"`
	P90     uint32 `json:"p90"`
	P99     uint32 `json:"p99"`
	P999    uint32 `json:"p999"`
	Max     uint32 `json:"max"`
}
