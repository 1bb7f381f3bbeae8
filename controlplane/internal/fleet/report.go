package fleet

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// The properties by which the filter is told how to report, and in which it does.
const (
	traceProperty = "sluice.trace"
	traceReport   = "1"
	traceBrief    = "brief"

	reportState  = "sluice.report"  // a verdict
	briefState   = "sluice.brief"   // a verdict in brief
	settledState = "sluice.settled" // what was charged for an answer
)

// Report is what the filter says of a request, for ReadVerdict.
func Report(x *sim.Exchange) []byte { return []byte(x.State()[reportState]) }

// ReportIn is Report of a request that has ended, from its response.
func ReportIn(response *sim.Response) []byte { return []byte(response.State[reportState]) }

// ReadVerdict reads what the filter said of a request or an operation, beside its response.
func ReadVerdict(report []byte, response *sim.Response) (result.Result, error) {
	var verdict result.Result
	err := json.Unmarshal(report, &verdict)
	isDecision := verdict.Allowed != nil && (*verdict.Allowed || verdict.RetryNs != nil)
	if err != nil || !isDecision && verdict.Value == nil {
		return verdict, fmt.Errorf("the filter gave no verdict, status %d: %s", response.Status, response.Details)
	}
	return verdict, nil
}

// Settled is what the filter charged for the answer to a request that has ended, as it says it:
// a list of result.Settled in JSON. It is empty if nothing was settled.
func Settled(x *sim.Exchange) (string, error) {
	settled := x.State()[settledState]
	switch {
	case settled != "" && !json.Valid([]byte(settled)):
		return "", errors.New("the filter does not say how it settled the answer: " + settled)
	case settled == "[]": // what lingers after its client has left is not settled yet
		return "", nil
	}
	return settled, nil
}

// ReadSettled reads what Settled returns.
func ReadSettled(text string) (list []result.Settled, err error) {
	err = json.Unmarshal([]byte(text), &list)
	return list, err
}
