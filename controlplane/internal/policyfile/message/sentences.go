package message

import (
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// sentences say what is wrong and what would be right. {value} is the value as an
// error shows it and {count} how many items it has; {1} is the problem's first
// argument, {"1"} the same in quotes and {ns 1} the same as a duration; {first} is
// the path of what came first; {window} is the wrong window and {windows} are the rule's own.
var sentences = map[policy.Code]string{
	policy.EmptyDocument:  "has no value: a policy is an object",
	policy.InvalidJSON:    "is not JSON",
	policy.TooLarge:       "the policy is {1} bytes, the most is " + strconv.Itoa(policy.MaxBytes),
	policy.TooDeep:        "is nested more than " + strconv.Itoa(policy.MaxDepth) + " deep",
	policy.MoreProblems:   "and {1} more problems",
	policy.UnknownVersion: "{value} is not known to this build, which reads version " + strconv.Itoa(policy.Version),
	policy.Reserved:       "is reserved: the control plane sets it when it pushes a policy; remove it",

	policy.MissingField:   "is missing: it must be {want}",
	policy.DuplicateField: "appears twice: keep one",
	policy.TooLong:        "must be at most {1} bytes long",
	policy.TooMany:        "has {count} items, the most is {1}",
	policy.WrongCount:     "must have {1} to {2} items, not {count}",
	policy.DurationRange:  "must be {ns 2} to {ns 3}, not {ns 1}",
	policy.EmptyValue:     "must not be empty: give it a value, or remove it",
	policy.ControlChar:    "must not hold control characters; tabs and ends of lines may stand in the body of a response",
	policy.OuterSpace:     "must not start or end with a space: {value}",
	policy.NotASCII:       "a header's value must be ASCII: {value}",

	policy.BadPolicyName: "{value} cannot be a policy's name: write 1 to " +
		strconv.Itoa(policy.MaxPolicyName) + " letters, digits, - and _ such as edge",
	policy.DefaultProxies: "the policy default is for all proxies that no other policy takes: " +
		"give this policy a name, or remove proxies",
	policy.NameWithoutProxies: `the policy {value} does not say which proxies it is for: ` +
		`write proxies: {node: "edge-*"} or the like; only the policy default takes those that no other policy does`,
	policy.UntrustedMetadata: "metadata is what a proxy says of itself: " +
		"write trust: metadata beside it if you trust that, or select by san",
	policy.TrustMisplaced: "there is no metadata to trust: remove it",

	policy.BadManagePath: `{value} cannot be the path of management: ` +
		`write a path that begins and ends with "/" such as "/.sluice/"`,
	// The value may be the token itself: it is not repeated.
	policy.BadTokenHash: `must be the SHA-256 of a token that is not empty, in quotes, 64 hexadecimal digits: ` +
		`printf %s "$TOKEN" | sha256sum`,
	policy.BadUsagePath: `{value} cannot be the path of usage: ` +
		`write one that begins with "/" such as "/.well-known/ratelimit", without query, escapes and patterns`,
	policy.ManagedUsagePath: `begins with {"1"}, where management answers: write another path`,

	policy.RuleNameTwice: `{"1"} is the name of {first} too: names of rules must differ`,
	policy.CountDenied: "does not go with token_bucket, where a denied request takes nothing: " +
		"remove it, or use another algorithm",
	policy.ShadowPercent: "does not go with mode shadow, which enforces nothing: remove it, or set mode to enforce",
	policy.ExemptsAll:    "would exempt every request: give it a condition, or set mode to off",
	policy.ClusterOnly:   "only a rule of scope cluster has it: remove it, or set scope to cluster",
	policy.HeldDenials: "does not go with settle and algorithm concurrency, " +
		"because a denied request holds nothing to count: remove it",
	policy.HeldLease: "does not go with settle and algorithm concurrency, " +
		"because units that a late answer frees fit no lease: remove it",
	policy.LeasedDenials: "needs lease: off in a rule of scope cluster: " +
		"a proxy that leases denies requests without asking, and those requests would not be counted",
	policy.LeasedElastic: "needs lease: off in a rule of scope cluster: " +
		"a unit was counted when it was leased, so spending it cannot move the end of its window",
	policy.LeasedBlock: "does not go with block: " +
		"a blocked key would pass with units that a proxy has leased before, " +
		"so each request asks for its own cost: remove it",

	policy.CounterKey: `shares counter {"1"} with {first}: their keys must be the same`,
	policy.CounterWindows: `shares counter {"1"} with {first}: ` +
		`their windows (algorithm, per, offset, jitter, elastic) must be the same`,
	policy.CounterCapacity: `shares counter {"1"} with {first}: their capacities must be the same, not {2} and {3}`,
	policy.CounterScope: `shares counter {"1"} with {first}: their scopes must be the same, ` +
		`because one would count in each proxy and the other over all: give one of them a counter of its own`,
	policy.CounterLease: `shares counter {"1"} with {first}: ` +
		`their lease must be the same, because a proxy spends the same units for both`,
	policy.CounterLimits: `shares counter {"1"} and leased units with {first}: ` +
		`their limits and overrides must be the same, or units leased ` +
		`under the higher limit would be spent under the lower: set lease to off in both, or give each a counter of its own`,

	policy.CounterHold: `shares counter {"1"} with {first}: ` +
		`both need settle or algorithm concurrency with the same hold, or neither may have them`,

	policy.CounterBlock: `shares counter {"1"} with {first}: both need the same block, or neither may have one`,

	policy.CostWithoutPlace: "must name where the cost is, such as {header: x-cost}",
	policy.CostTwoPlaces:    "has several places where the cost is: keep one",
	policy.CostBoundsMisplaced: "does not go with a length such as request_bytes: " +
		"its min and max are fields of it, and an unknown length costs its max",
	policy.CostMinAboveMax:  "min is {1} and max {2}: min must not be above max",
	policy.CostBeyondBounds: "default is {1}: it must be from min to max, {2} to {3}",
	policy.CostForAllEarly:  "has no match, so no item after it is ever used: put it last",

	policy.BadLimit:         "{value} is not a limit: " + limitHint,
	policy.BadLimitPeriod:   "{value} is not a limit, because its period is not known: " + limitHint,
	policy.BadLimitRequests: "{value} is not a limit: the requests of one are a whole number from 0 to 4294967295",
	policy.ManyLimits:       "{value} is more than one limit: write each limit as an item",
	policy.BadDuration: `{value} is not a duration: ` +
		`write one such as "10s", "1h30m" or "7d", with the units ns, us, ms, s, m, h, d, w`,
	policy.LongDuration: "duration {value} is too long: the most is 366d",
	policy.PeriodRange:  "a window must be 1ms to 366d long, not {ns 1}",

	policy.MonthCount: "a window of months has 1, 2, 3, 4, 6 or 12 of them, so that one starts with each year, not {1}",
	policy.MonthsMisplaced: "only fixed_window counts by calendar months, not {1}: " +
		"set algorithm to fixed_window, or write 30d or 365d for a window of that length",
	policy.MonthJitter: "a window of months has no jitter: " +
		"remove it, or write 30d or 365d for a window of that length",
	policy.MonthOffsetTooLong: "must be less than 28d, the shortest month, not {ns 1}",
	policy.UTCOffsetMisplaced: "only a window of months or years has a UTC offset: " +
		"remove it, or shift other windows by offset, such as 16h for days of UTC+8",
	policy.WindowNameNumber: "{value} looks like the index of a window: use a letter",
	policy.WindowNameTwice:  `has the name of {first}, {"1"}: names of windows must differ`,
	policy.WindowTwice:      "is the same window as {first} ({window}): keep the one with the smaller limit",
	policy.LogTooLong: "a sliding_window_log remembers each request, at most " + strconv.Itoa(limit.MaxLog) +
		" of them, not {1}: use sliding_window_counter",
	policy.LogsTooLong: "the logs remember {1} requests a key together (with overrides and rules of the same counter), " +
		"more than a counter has room for: one log of " + strconv.Itoa(limit.MaxLog) + " fits; " +
		"use sliding_window_counter for the larger one",
	policy.EmptyBucket:    "must be at least 1, not 0: a bucket that holds nothing always denies",
	policy.BurstMisplaced: "only token_bucket has a burst: remove it, or set algorithm to token_bucket",

	policy.RequestedWithoutPlace: "must name where a request says the limit, " +
		"such as jwt: {provider: corp, claim: rpm} or header: x-limit",
	policy.RequestedManyPlaces: "has several places where a request says the limit: keep one",
	policy.RequestedUntrusted: "a client can send any {1} and so choose its limit: " +
		"name a jwt claim or metadata, or add trusted: true if a proxy in front sets or removes it",
	policy.RequestedTrusted:  "{1} does not come from the client, so there is nothing to trust: remove it",
	policy.RequestedAboveMax: "must be at most max, which is {2}, not {1}",
	policy.NumberOfBucket: "a token bucket's limit cannot come from a request, because a client " +
		"would get tokens back when its record is evicted and its number grows: write a number, or use another algorithm",
	policy.NumberOfOverride: "an override gives its keys a number: " +
		"write one, or leave keys whose limit comes from the request out of overrides",

	policy.ElasticMisplaced: "only fixed_window_per_key can be elastic: " +
		"remove it, or set algorithm to fixed_window_per_key",
	policy.JitterMisplaced: "only fixed_window has jitter: remove it, or set algorithm to fixed_window",
	policy.OffsetMisplaced: "only fixed_window has an offset, not {1}: remove it, or set algorithm to fixed_window",
	policy.OffsetTooLong:   "must be less than per, which is {ns 1}, not {ns 2}",

	policy.ConcurrencyAlone: "with algorithm concurrency a rule has one limit, " +
		"how many requests may run at once, not {count}: give each other limit a rule of its own",
	policy.ConcurrencyInLimit: "concurrency is the algorithm of a whole rule, because it has no window: " +
		"give it a rule of its own",
	policy.BadSlots: "{value} is not how many requests may run at once: " +
		"with algorithm concurrency write a whole number without a period, from 0 to 4294967295, such as 10",
	policy.SlotsField: "with algorithm concurrency a limit has no window: " +
		"remove it, or choose another algorithm for the rule",
	policy.SettleConcurrency: "does not go with algorithm concurrency, which has no window to charge: " +
		"give it a rule of its own",
	policy.SettleWindows: "has {count} windows: a rule with settle has at most " + strconv.Itoa(policy.MaxSettledWindows) +
		", because what it holds takes the room of one",
	policy.SettlePlaces: "must name one place in the answer where the cost is, such as {header: x-cost}",
	policy.EstimateMisplaced: "only tokens can be estimated: " +
		"write cost or 0, or set to to tokens, input_tokens, output_tokens or price",
	policy.PriceWithoutPrices: "needs what tokens cost: " +
		`write prices such as [{model: "*", input: 250000, output: 1000000}] beside it, in units for a million tokens`,
	policy.PricesMisplaced: "only to: price reads prices: remove them, or set to to price",
	policy.BadStatus: `{value} is not a status: ` +
		`write one from 100 to 599 such as 401, all of a hundred such as "4xx", or a range such as "400-499"`,
	policy.HoldMisplaced:   "only a rule with settle or algorithm concurrency has holds: remove it, or add settle",
	policy.HoldRange:       "must be {ns 2} to {ns 3}, not {ns 1}: a request that runs for longer renews its hold",
	policy.MaxHoldRange:    "must be from hold, which is {ns 2}, to 366d, not {ns 1}",
	policy.LingerMisplaced: "only a rule with algorithm concurrency has it: remove it, or set algorithm to concurrency",

	policy.BlockConcurrency: "does not go with algorithm concurrency, " +
		"where a request is denied only because others run: remove it",
	policy.BlockWindows: "has {count} windows: a rule like this with block has at most {1}, " +
		"because the block takes the room of one",

	policy.BadHost: `{value} is not a host: write one such as "api.example.com", "*.example.com" or "[2001:db8::1]", ` +
		`in ASCII and without scheme, port and path, or leave hosts out to match every host`,
	policy.BadMethod: "{value} is not a method: write one in upper case such as GET",
	policy.BadPath: `{value} is not a path: write one such as "/v1/users", "/v1/*" for all that ` +
		`begin so or a regular expression such as "~/v[0-9]+", without the query; "=" before a path takes its * literally`,
	policy.BadPattern: `a * may stand at one end of a value, and a ! alone in match: ` +
		`write a regular expression after "~", or "=" before a value to take it literally`,
	policy.BadNetwork: `{value} is not an address or a network: ` +
		`write one such as "192.0.2.7", "10.0.0.0/8" or "2001:db8::/32", without port, zone and bits beyond the prefix`,
	policy.BadHeaderName: `{"1"} is not a header's name: ` +
		`write one such as x-user-id; host, method, path and status have fields of their own`,
	policy.BadScheme:     "{value} is not an authentication scheme: write one such as bearer",
	policy.BadCookieName: "{value} is not a cookie's name: write one such as session",

	policy.ManyInKeyPart: "must have one field, not {1}: make each part an item of its own",
	policy.FirstOfNested: "a first_of has no first_of in it: put its parts in the list",
	policy.FirstOfTwice:  "is never chosen: {first} is {1} too",
	policy.PropertyTooEarly: `{"1"} is not known before the request is decided; ` +
		`the key part route is the name of the route`,
	policy.PropertyNoValue: "has many values: name one of them, such as [request, headers, x-user-id]",

	policy.OverrideNoKey:   "the rule has no key whose values could differ: give it a key, or change its limits",
	policy.OverrideBoth:    "an unlimited key has no limits: keep one of the two",
	policy.OverrideNeither: "must have limits, or unlimited: true",
	policy.OverrideRenames: "a window has one name for all keys, the one in the rule's limits: remove it here",
	policy.OverriddenTwice: "is the same window as one before it ({window}): keep one",
	policy.NotARuleWindow:  "is {window}: an override only changes the numbers of the rule's windows, which are {windows}",
	policy.PatternCount: `must have {1} patterns, one for each part of the rule's key, not {count}: ` +
		`write "*" for a part that may be anything`,

	policy.BadTemplate: `has a % that begins no placeholder: ` +
		`write %% for a percent sign, or one of %` + strings.Join(policy.Placeholders, "%, %") + "%",
	policy.BadMediaType: "{value} is not a media type: write one such as application/json",
	policy.HeaderTaken: "cannot be set here: " +
		"the proxy sets it, or a field of the policy such as content_type, grpc_status and headers",
	policy.GRPCStatusOK: "a denial cannot be ok: remove it for resource_exhausted, or write unavailable",
}

const limitHint = `write one such as "10/minute", "5/1s" or "3 per 15 minutes"`
