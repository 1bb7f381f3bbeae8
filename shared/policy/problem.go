package policy

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Problem is one thing wrong with a policy. The control plane makes a sentence
// of it; the filter logs its path and code.
type Problem struct {
	Code         Code
	Path         string // "rules[2].limits[0].per"; empty for the document
	Line, Column int    // 0 = unknown
	Node         *Node  // the value; nil if the name of a field is wrong
	Want         Shape  // what belongs there, if the code is about the shape
	Args         []string
	First        string         // the path of the first, if something is there twice
	Windows      []limit.Window // the window that is wrong, then the rule's own

	at, first Place
}

// Error is "LINE:COLUMN: path: code" without the parts that are unknown.
func (p *Problem) Error() string {
	s := ""
	if p.Line > 0 {
		s = itoa(int64(p.Line)) + ":" + itoa(int64(p.Column)) + ": "
	}
	if p.Path != "" {
		s += p.Path + ": "
	}
	s += string(p.Code)
	if p.Code == MoreProblems {
		s += " " + p.Args[0]
	}
	return s
}

// Code says what kind of problem it is.
type Code string

// The codes, with their arguments.
const (
	TooLarge      Code = "too_large"      // bytes
	EmptyDocument Code = "empty_document" // JSON without a value
	InvalidJSON   Code = "invalid_json"
	TooDeep       Code = "too_deep"
	MoreProblems  Code = "more_problems" // how many are left out

	WrongValue     Code = "wrong_value" // not of the wanted shape
	MissingField   Code = "missing_field"
	UnknownField   Code = "unknown_field"   // name
	DuplicateField Code = "duplicate_field" // line of the first, if known
	UnknownVersion Code = "unknown_version"
	Reserved       Code = "reserved"
	TooLong        Code = "too_long"       // most bytes
	TooMany        Code = "too_many"       // most items
	WrongCount     Code = "wrong_count"    // fewest and most items
	DurationRange  Code = "duration_range" // ns, least and most ns
	EmptyValue     Code = "empty_value"    // text, list or object
	ControlChar    Code = "control_char"   // in a text
	OuterSpace     Code = "outer_space"    // at an end of a text
	NotASCII       Code = "not_ascii"      // in a header's value

	BadPolicyName      Code = "bad_policy_name"
	DefaultProxies     Code = "default_proxies"      // proxies of the policy that takes all others
	NameWithoutProxies Code = "name_without_proxies" // not the default's
	UntrustedMetadata  Code = "untrusted_metadata"   // without trust
	TrustMisplaced     Code = "trust_misplaced"      // without metadata

	BadManagePath Code = "bad_manage_path"
	BadTokenHash  Code = "bad_token_hash"

	BadUsagePath     Code = "bad_usage_path"
	ManagedUsagePath Code = "managed_usage_path" // the path of management

	RuleNameTwice    Code = "rule_name_twice"    // name
	CountDenied      Code = "count_denied"       // with a token bucket
	ShadowPercent    Code = "shadow_percent"     // enforce_percent in shadow mode
	ExemptsAll       Code = "exempts_all"        // an exemption without conditions
	ClusterOnly      Code = "cluster_only"       // not in a rule of scope proxy
	HeldDenials      Code = "held_denials"       // count_denied in a rule that holds
	HeldLease        Code = "held_lease"         // lease in a rule that holds
	LeasedDenials    Code = "leased_denials"     // count_denied without lease: off
	LeasedElastic    Code = "leased_elastic"     // elastic without lease: off
	LeasedBlock      Code = "leased_block"       // a number of units in a rule with a block
	CounterKey       Code = "counter_key"        // counter
	CounterWindows   Code = "counter_windows"    // counter
	CounterCapacity  Code = "counter_capacity"   // counter, both capacities
	CounterScope     Code = "counter_scope"      // counter
	CounterLease     Code = "counter_lease"      // counter
	CounterLimits    Code = "counter_limits"     // counter; both lease
	CounterHold      Code = "counter_hold"       // counter
	CounterBlock     Code = "counter_block"      // counter
	LogsTooLong      Code = "logs_too_long"      // units of all logs
	CostWithoutPlace Code = "cost_without_place" // it names no place of the cost
	CostTwoPlaces    Code = "cost_two_places"    // it names more than one
	CostMinAboveMax  Code = "cost_min_above_max" // min, max
	CostBeyondBounds Code = "cost_beyond_bounds" // default, min, max
	CostForAllEarly  Code = "cost_for_all_early" // not the last of a list
	BadLimit         Code = "bad_limit"          // as text
	BadLimitPeriod   Code = "bad_limit_period"   // in text
	BadLimitRequests Code = "bad_limit_requests" // in text
	ManyLimits       Code = "many_limits"        // in one text
	BadDuration      Code = "bad_duration"
	LongDuration     Code = "long_duration"
	PeriodRange      Code = "period_range"     // ns
	MonthCount       Code = "month_count"      // count
	MonthsMisplaced  Code = "months_misplaced" // not a fixed window; algorithm
	WindowNameNumber Code = "window_name_number"
	WindowNameTwice  Code = "window_name_twice" // name
	WindowTwice      Code = "window_twice"      // Windows
	LogTooLong       Code = "log_too_long"      // units
	EmptyBucket      Code = "empty_bucket"      // burst 0
	BurstMisplaced   Code = "burst_misplaced"   // not a token bucket

	RequestedWithoutPlace Code = "requested_without_place"
	RequestedManyPlaces   Code = "requested_many_places"
	RequestedUntrusted    Code = "requested_untrusted" // label
	RequestedTrusted      Code = "requested_trusted"   // label
	RequestedAboveMax     Code = "requested_above_max" // default and max
	NumberOfBucket        Code = "number_of_bucket"    // of a token bucket
	NumberOfOverride      Code = "number_of_override"  // in an override

	ElasticMisplaced Code = "elastic_misplaced" // not a window per key
	JitterMisplaced  Code = "jitter_misplaced"  // not a fixed window
	OffsetMisplaced  Code = "offset_misplaced"  // not a fixed window; algorithm
	OffsetTooLong    Code = "offset_too_long"   // period and offset in ns

	CostBoundsMisplaced Code = "cost_bounds_misplaced" // beside a length such as request_bytes
	ConcurrencyAlone    Code = "concurrency_alone"     // not one limit
	ConcurrencyInLimit  Code = "concurrency_in_limit"  // as a limit's algorithm
	BadSlots            Code = "bad_slots"             // the limit of a rule with algorithm concurrency
	SlotsField          Code = "slots_field"           // of a window, in such a limit; name
	SettleConcurrency   Code = "settle_concurrency"
	SettleWindows       Code = "settle_windows" // too many
	SettlePlaces        Code = "settle_places"  // not one of header and trailer
	PriceWithoutPrices  Code = "price_without_prices"
	PricesMisplaced     Code = "prices_misplaced" // not to price
	EstimateMisplaced   Code = "estimate_misplaced"
	BadStatus           Code = "bad_status"
	HoldMisplaced       Code = "hold_misplaced"   // the rule holds nothing
	HoldRange           Code = "hold_range"       // ns, least and most ns
	MaxHoldRange        Code = "max_hold_range"   // ns, hold in ns
	LingerMisplaced     Code = "linger_misplaced" // not of concurrency

	MonthJitter        Code = "month_jitter"
	MonthOffsetTooLong Code = "month_offset_too_long" // ns
	UTCOffsetMisplaced Code = "utc_offset_misplaced"  // not of months

	BadHost          Code = "bad_host"
	BadMethod        Code = "bad_method"
	BadPath          Code = "bad_path"
	BadPattern       Code = "bad_pattern"
	BadExpression    Code = "bad_expression" // expression, reason
	BadNetwork       Code = "bad_network"
	BadHeaderName    Code = "bad_header_name" // name
	BadCookieName    Code = "bad_cookie_name"
	BadScheme        Code = "bad_scheme"
	ManyInKeyPart    Code = "many_in_key_part" // fields
	FirstOfNested    Code = "first_of_nested"
	FirstOfTwice     Code = "first_of_twice"     // label
	PropertyTooEarly Code = "property_too_early" // not known before the decision
	PropertyNoValue  Code = "property_no_value"
	OverrideNoKey    Code = "override_no_key" // the rule has none
	OverrideBoth     Code = "override_both"   // limits and unlimited
	OverrideNeither  Code = "override_neither"
	PatternCount     Code = "pattern_count"     // key parts
	NotARuleWindow   Code = "not_a_rule_window" // Windows
	OverriddenTwice  Code = "overridden_twice"  // Windows
	OverrideRenames  Code = "override_renames"  // a window
	BlockConcurrency Code = "block_concurrency"
	BlockWindows     Code = "block_windows" // too many; how many there may be
	BadTemplate      Code = "bad_template"
	BadMediaType     Code = "bad_media_type"
	HeaderTaken      Code = "header_taken"
	GRPCStatusOK     Code = "grpc_status_ok"
)

// Clip cuts s if it is too long for a message or a path.
func Clip(s string) string {
	const maxBytes = 60
	if len(s) <= maxBytes {
		return s
	}
	cut := maxBytes
	for cut > maxBytes-4 && s[cut]&0xc0 == 0x80 { // inside a character
		cut--
	}
	return s[:cut] + "…"
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
