package dashboard_test

import (
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
)

// startsEditsAgain clicks an edit's button a second time: what is shown then is what is written.
func startsEditsAgain(t *testing.T, p *page, f *fakeNode) {
	item := apiv1.Item{Key: "config/a", Value: []byte("old"), Revision: 4, CreateRevision: 4, Version: 1}
	f.answer("GET /v1/kv", apiv1.List{Items: []apiv1.Item{item}})
	f.answer("GET /admin/audit", apiv1.Audit{Items: []apiv1.AuditRecord{}})
	write := func(want string) {
		t.Helper()
		key, value := p.value("#edit-key"), p.value("#edit-value")
		f.answer("PUT "+want, struct{}{})
		p.click("button", "Continue")
		p.click("button", "Write it")
		p.wait("it was written", `!document.querySelector("#edit-key")`)
		got := f.changed()
		if len(got) != 1 || got[0].Call != "PUT "+want || got[0].Body != value {
			t.Errorf("shown %q = %q, written %q", key, value, got)
		}
	}
	p.visit("#/keys/config%2F")
	p.click("button", "New key…")
	p.fill("#edit-key", "config/b")
	p.fill("#edit-value", "typed")
	p.click("button", "New key…")
	p.fill("#edit-key", "config/c")
	write("/v1/kv/config%2Fc")
	p.click("button", "config/a")
	p.click("button", "Edit…")
	p.fill("#edit-value", "typed")
	p.click("button", "Edit…")
	write("/v1/kv/config%2Fa")
}

// followsAKey changes the opened key from elsewhere, by a call that the audit log does not have, and deletes it.
func followsAKey(_ *testing.T, p *page, f *fakeNode) {
	put := func(revision uint64, value string) {
		f.answer("GET /v1/kv", apiv1.List{Items: []apiv1.Item{{
			Key: "config/a", Value: []byte(value), Revision: revision, CreateRevision: 4, Version: revision,
		}}})
	}
	wrote := func(who string) {
		f.answer("GET /admin/audit", apiv1.Audit{Items: []apiv1.AuditRecord{{
			Seq: "1", When: time.Now(), Who: who, Role: "client", What: "PUT /v1/kv/config%2Fa", Status: 200,
		}}})
	}
	put(5, "of bob")
	wrote("bob")
	p.visit("#/keys/config%2F")
	p.click("button", "config/a")
	p.waitText("Last write in the audit log: bob (client)")
	put(6, "of eve")
	wrote("eve")
	p.loadAgain()
	p.waitText("of eve")
	p.waitText("Last write in the audit log: eve (client)")
	f.answer("GET /v1/kv", apiv1.List{Items: []apiv1.Item{}})
	p.loadAgain()
	p.waitText("This key was deleted")
	put(7, "of bob again")
	p.loadAgain()
	p.waitText("of bob again")
	p.wait("it is not shown as deleted", `!document.body.innerText.includes("This key was deleted")`)
	f.answer("GET /v1/kv", apiv1.List{Items: []apiv1.Item{}, Next: "config/b"}) // it may be on another page
	p.loadAgain()
	p.waitText("This key was deleted")
	p.click("button", "Close")
}

// waitsForTheWriter changes the opened key while the audit log is slow: the key is not read again before that answers.
func waitsForTheWriter(t *testing.T, p *page, f *fakeNode) {
	put := func(revision uint64, value, who string) {
		f.answer("GET /v1/kv", apiv1.List{Items: []apiv1.Item{{
			Key: "config/a", Value: []byte(value), Revision: revision, CreateRevision: 4, Version: revision,
		}}})
		f.answer("GET /admin/audit", apiv1.Audit{Items: []apiv1.AuditRecord{{
			Seq: "1", When: time.Now(), Who: who, Role: "client", What: "PUT /v1/kv/config%2Fa", Status: 200,
		}}})
	}
	put(5, "of bob", "bob")
	p.visit("#/keys/config%2F")
	p.click("button", "config/a")
	p.waitText("Last write in the audit log: bob (client)")
	p.eval(`void (window.reads = 0, window.realFetch = fetch, window.fetch = async (url, options) => {
		if (url.includes("/v1/kv")) window.reads++;
		if (url.includes("/admin/audit")) await new Promise((done) => { window.release = done; });
		return window.realFetch(url, options);
	})`, nil)
	defer p.eval("void (window.fetch = window.realFetch, window.release?.())", nil)
	put(6, "of eve", "eve")
	p.loadAgain()
	p.waitText("of eve")
	p.wait("the audit log is asked", "window.release")
	if text := p.text(); !strings.Contains(text, "Last write in the audit log: bob") {
		t.Errorf("before the audit log answers: %s", text)
	}
	var reads int
	p.eval(`new Promise((done) => {
		document.dispatchEvent(new Event("northstar:reload"));
		setTimeout(() => done(window.reads)); // after the page was drawn
	})`, &reads)
	if reads != 1 {
		t.Errorf("the key was read %d times before the audit log answered", reads)
	}
	p.eval("void (window.fetch = window.realFetch, window.release())", nil)
	p.waitText("Last write in the audit log: eve (client)")
	p.click("button", "Close")
}

// followsTheAuditLog adds a record, which comes with no event and no other revision.
func followsTheAuditLog(_ *testing.T, p *page, f *fakeNode) {
	wrote := func(what string) {
		f.answer("GET /admin/audit", apiv1.Audit{Items: []apiv1.AuditRecord{{
			Seq: what, When: time.Now(), Who: "ann", Role: "operator", What: what, Status: 200,
		}}})
	}
	wrote("POST /admin/transfer")
	p.visit("#/audit")
	p.waitText("POST /admin/transfer")
	wrote("DELETE /admin/members/n3")
	defer p.moveClock("10_000")() // it is looked at every five seconds
	p.waitText("DELETE /admin/members/n3")
}

// The page loads itself again when one of its modules could not be loaded.
func TestDashboard_LoadsAgain(t *testing.T) {
	t.Parallel()
	b := startChromium(t)
	f := startFakeNode(t)
	f.unfinished.Store(2)
	p := b.open(t, f.URL+"/", 1280, 900)
	p.waitText("n1 leads")
	if f.unfinished.Load() >= 0 {
		t.Error("no third answer with words.js")
	}
}
