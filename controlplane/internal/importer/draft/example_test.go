package draft_test

import (
	"fmt"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// An import that finds a limit for each client, which has a condition that no policy can say.
func Example() {
	d := draft.New("a limiter", "limits.yaml", policy.ScopeProxy)
	at := source.Place{File: "limits.yaml", Line: 3}
	limit := &draft.Limit{Numbers: draft.Windowed(5, "minute"), At: at}
	limit.Comment("There it counts in UTC.")
	requests := request.Method.Value().Fitting(request.Exact("POST"))
	requests.TurnOff(request.NoMatch("they come at night"))

	d.Add(draft.NewRule(draft.Terms{
		Name: "clients", At: at, Limit: limit, Requests: requests, Key: []request.Part{request.ClientIP},
	}))

	made, err := d.Finish()
	fmt.Printf("%s", made.Policy)
	for _, note := range made.Notes {
		fmt.Println(note.String())
	}
	fmt.Println(err)
	// Output:
	// # Imported from a limiter. Read the comments: they say what differs.
	// version: 1
	// rules:
	//   # There it counts in UTC.
	//   # Off: No match can select its requests: they come at night.
	//   # Remove mode once you have dealt with that.
	//   - name: clients
	//     match: {methods: [POST]}
	//     key: [{client_ip: {v4_prefix: 32, v6_prefix: 128}}]
	//     limits: [5/minute]
	//     mode: "off"
	// limits.yaml:3: clients: There it counts in UTC.
	// limits.yaml:3: clients is off: No match can select its requests: they come at night.
	// <nil>
}
