package policyfile

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/weaktoken"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// judgeManage finds what is dangerous in the manage section of a valid policy: a
// token that anyone would guess is an error, no port a warning.
func judgeManage(doc *policy.Node) (problems, warnings []Problem) {
	manage := doc.Member("manage")
	if manage == nil {
		return nil, nil
	}
	token := manage.Member("token_sha256")
	if why, weak := weaktoken.Weak(token.Text); weak {
		problems = append(problems, Problem{
			Line: token.Line, Column: token.Column, Path: "manage.token_sha256",
			Message: why + ": make a token with openssl rand -hex 32",
		})
	}
	if manage.Member("port") == nil {
		warnings = append(warnings, Problem{
			Line: manage.Line, Column: manage.Column, Path: "manage",
			Message: "without port, management requests are answered on every listener, those of clients too: name the port of a listener for them alone, such as render envoy --manage makes",
		})
	}
	return problems, warnings
}
