package console

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
)

const (
	// sessionTime is how long a session lasts: about a working day.
	sessionTime = 10 * time.Hour
	// maxSessions bounds the sessions of all tokens, and maxOfToken those of one, so
	// that the holder of one token does not end the sessions of others.
	maxSessions = 1000
	maxOfToken  = 20
)

// session is that of somebody who showed a token. Each request is judged by the
// access file as it is then.
type session struct {
	digest access.Digest
	ends   time.Time
}

type sessions struct {
	now func() time.Time

	mu   sync.Mutex
	byID map[string]session
}

func newSessions(now func() time.Time) *sessions {
	return &sessions{now: now, byID: map[string]session{}}
}

// begin returns the id of a new session. Where there is no room, the session that
// would end first goes.
func (s *sessions) begin(d access.Digest) string {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails
	id := hex.EncodeToString(raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, is := range s.byID {
		if !s.now().Before(is.ends) {
			delete(s.byID, other)
		}
	}
	s.makeRoom(maxOfToken, func(other session) bool { return other.digest == d })
	s.makeRoom(maxSessions, func(session) bool { return true })
	s.byID[id] = session{d, s.now().Add(sessionTime)}
	return id
}

// makeRoom drops the session that ends first if there are so many.
func (s *sessions) makeRoom(bound int, counts func(session) bool) {
	n, first := 0, ""
	for id, is := range s.byID {
		if counts(is) {
			if n++; first == "" || is.ends.Before(s.byID[first].ends) {
				first = id
			}
		}
	}
	if n >= bound {
		delete(s.byID, first)
	}
}

// resume returns a context in which requests bear the session's token.
func (s *sessions) resume(ctx context.Context, id string) (context.Context, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is, ok := s.byID[id]
	if !ok || !s.now().Before(is.ends) {
		return ctx, false
	}
	return access.WithToken(ctx, is.digest), true
}

func (s *sessions) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, id)
}

// cookieName is the session's cookie. Over TLS the prefix keeps other hosts of the
// domain from setting it.
func cookieName(r *http.Request) string {
	if r.TLS != nil {
		return "__Host-sluice-session"
	}
	return "sluice-session"
}

func sessionID(r *http.Request) string {
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return ""
	}
	return cookie.Value
}

func setCookie(w http.ResponseWriter, r *http.Request, id string, maxAge int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(r), Value: id, Path: "/", MaxAge: maxAge,
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
}

// csrf is what the visitor's forms carry: other pages cannot know it.
func (c *console) csrf(v *visit) string {
	h := hmac.New(sha256.New, c.secret)
	h.Write([]byte(v.Session + "\x00" + v.caller.Name))
	return hex.EncodeToString(h.Sum(nil))
}

func (c *console) loginPage(w http.ResponseWriter, r *http.Request, _ *visit) error {
	if !c.access {
		http.Redirect(w, r, Path, http.StatusSeeOther)
		return nil
	}
	return c.render(w, http.StatusOK, "login", view{Title: "Sign in", Body: ""})
}

// login begins a session for somebody who shows a token. The API says whether it is one.
func (c *console) login(w http.ResponseWriter, r *http.Request, _ *visit) error {
	digest, ok := access.DigestOf(r.PostForm.Get("token"))
	if !ok {
		return &failure{code: http.StatusBadRequest, Text: "the token is too long"}
	}
	err := c.get(r.WithContext(access.WithToken(r.Context(), digest)), "/v1/caller", &api.Caller{})
	switch {
	case isCode(err, http.StatusUnauthorized):
		return c.render(w, http.StatusUnauthorized, "login", view{Title: "Sign in", Body: "The token is wrong."})
	case err != nil:
		return err
	}
	c.sessions.end(sessionID(r))
	setCookie(w, r, c.sessions.begin(digest), int(sessionTime/time.Second))
	http.Redirect(w, r, Path, http.StatusSeeOther)
	return nil
}

func (c *console) logout(w http.ResponseWriter, r *http.Request, v *visit) error {
	c.sessions.end(v.Session)
	setCookie(w, r, "", -1)
	http.Redirect(w, r, "/console/login", http.StatusSeeOther)
	return nil
}
