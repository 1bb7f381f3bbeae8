package envoy

import (
	"strings"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// LoggedHeaders are the headers that the access log shows.
func (v bootstrapView) LoggedHeaders() (names []string) {
	for _, name := range v.Headers {
		if isLoggable(name) {
			names = append(names, name)
		}
	}
	return names
}

// isLoggable says whether a header may stand in an access log: it is no secret, and
// its name means nothing else in a format.
func isLoggable(name string) bool {
	return name != "" && !policy.IsCredential(name) && utf8.ValidString(name) && !strings.ContainsAny(name, "%():? ")
}
