package envoy

import (
	"strings"
	"unicode/utf8"
)

// LogLine is the format of the access log: when, what was asked and answered, what
// the rules decided, and by whose key.
func (v bootstrapView) LogLine() string {
	line := "%START_TIME% %REQ(:METHOD)% %PATH(NQ)% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS%" +
		" %FILTER_STATE(wasm.sluice.verdict:PLAIN)%"
	if v.ClientIP {
		line += " client_ip=%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"
	}
	for _, name := range v.Headers {
		if isLoggable(name) {
			line += " " + name + "=%REQ(" + name + ")%"
		}
	}
	return line + "\n"
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
