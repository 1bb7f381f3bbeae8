package envoy

import (
	"strings"
	"unicode/utf8"
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

// secrets are in the names of headers that no log should hold.
var secrets = []string{"auth", "cookie", "key", "token", "secret", "password", "session", "credential", "signature"}

// isLoggable says whether a header may stand in an access log: it is no secret, and
// its name means nothing else in a format.
func isLoggable(name string) bool {
	lower := strings.ToLower(name)
	for _, secret := range secrets {
		if strings.Contains(lower, secret) {
			return false
		}
	}
	return name != "" && utf8.ValidString(name) && !strings.ContainsAny(name, "%():? ")
}
