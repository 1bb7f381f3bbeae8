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
	// DeniedInLog counts those of Denied that the log has with status 429: they were denied at that time, too.
	DeniedInLog int64 `json:"again"`
	// DeniedOnlyHere counts those of Denied that the other policy does not deny.
	DeniedOnlyHere int64 `json:"alone,omitempty"`
	// Shadow counts requests that are not denied, and would be if all rules were enforced.
	Shadow int64 `json:"shadow_denied"`
	// ShadowOnlyHere counts those of Shadow that the other policy neither denies nor would deny.
	ShadowOnlyHere int64  `json:"shadow_alone,omitempty"`
	Rules          []Rule `json:"rules"`
}

// Rule is what one rule decided on the requests that it is for.
type Rule struct {
	Rule        string   `json:"rule"`
	Mode        string   `json:"mode"`
	Key         []string `json:"key"`
	Requests    int64    `json:"requests"`
	Denied      int64    `json:"denied"`
	DeniedInLog int64    `json:"again"`         // as in Outcome
	Shadow      int64    `json:"shadow_denied"` // would be denied if the rule were enforced
	// DeniedByOthers counts requests that other rules deny and this rule allows. The rule's limits do not
	// count them.
	DeniedByOthers int64            `json:"denied_by_others"`
	Reasons        map[string]int64 `json:"reasons"` // of denials, and of requests that were not counted

	Clients int64 `json:"clients"` // different keys
	// DeniedClients were denied at least once, enforced or in shadow.
	DeniedClients int64 `json:"denied_clients"`
	// Uncounted are requests of clients beyond MaxClients, which are not told apart.
	Uncounted int64 `json:"uncounted,omitempty"`

	Series Series   `json:"series"`
	Use    []Use    `json:"use,omitempty"` // by limit; none where a request costs a varying number of units
	Top    []Client `json:"top"`           // the most denied

	// Of DeniedOnlyHere and ShadowOnlyHere of Outcome, those that this rule is the first to deny.
	DeniedOnlyHere OnlyHere `json:"alone,omitzero"`
	ShadowOnlyHere OnlyHere `json:"shadow_alone,omitzero"`
}

// OnlyHere is what one rule denies, enforced or in shadow, and the other policy does not.
type OnlyHere struct {
	Requests int64    `json:"requests"`
	Clients  int64    `json:"clients"`
	Top      []Client `json:"top"`
}

// Series count requests over the report's timeline, each in one of them.
type Series struct {
	Allowed        []int64 `json:"allowed"`
	Denied         []int64 `json:"denied"`
	Shadow         []int64 `json:"shadow_denied"`
	DeniedByOthers []int64 `json:"denied_by_others"`
}

// Client is one key of a rule.
type Client struct {
	Key      []*string `json:"key"` // nil: the requests lack the part
	Requests int64     `json:"requests"`
	Denied   int64     `json:"denied"` // enforced or in shadow; in an OnlyHere, only by this policy
}

// Use is how many units clients asked for in aligned periods of a limit. Denied requests ask, too.
type Use struct {
	Limit    string  `json:"limit"`          // name or index
	Units    uint32  `json:"units"`          // that the limit allows at most at once
	From     string  `json:"from,omitempty"` // where requests say the limit; Units is its max
	Requests float64 `json:"requests"`       // that the limit allows in a period on average, by the rule's cost
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
