package api

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/api/stream"
	"northstar/api/token"
	"northstar/cluster"
)

const (
	feedInterval = time.Second            // between two looks at the cluster for an open page
	viewInterval = 30 * time.Second       // between two views that differ in times only
	feedPause    = 200 * time.Millisecond // at least, also when events come faster
	feedEvents   = 200                    // events that an opened page gets
	maxPages     = 64                     // open pages of a node
)

// feed is one open page. It pushes what the page shows all the time; the page requests other data when it is viewed.
type feed struct {
	c      *request
	since  string    // offset in the events of all nodes; "": nothing was sent yet
	opened time.Time // older events of a node that did not answer then are not sent
	shown  time.Time // time of the newest sample that was sent

	lasting apiv1.DashboardView // the newest view that was sent, without times
	viewed  time.Time           // when it was sent; zero: none was
}

// getFeed serves GET /dashboard/feed.
func getFeed(c *request) error {
	if err := c.s.pages.take(c.holder(), 1); err != nil {
		return err
	}
	defer c.s.pages.give(c.holder(), 1)
	f := &feed{c: c, opened: time.Now()}
	return c.stream(f.next)
}

// next waits until it is time for another view, and adds it with what is new.
func (f *feed) next(ctx context.Context, e *stream.Events) error {
	var notBefore time.Time
	if f.since != "" {
		if err := f.wait(ctx); err != nil {
			return err
		}
		notBefore = f.opened
	}
	var view apiv1.DashboardView
	var entries apiv1.Events
	var eventErr error
	var asking sync.WaitGroup
	asking.Go(func() { view = f.c.dashboardView(ctx) })
	asking.Go(func() { entries, eventErr = f.c.mergedEvents(ctx, f.since, "", feedEvents, notBefore) })
	asking.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if eventErr != nil {
		return eventErr // the page connects again, from the newest events on
	}
	f.since = entries.Next
	if err := f.addView(e, view); err != nil {
		return err
	}
	for _, s := range f.c.s.history.after(f.shown) {
		if err := addJSON(e, apiv1.EventSample, s); err != nil {
			return err
		}
		f.shown = s.At
	}
	for _, it := range entries.Items {
		if err := addJSON(e, apiv1.EventEntry, it); err != nil {
			return err
		}
	}
	return nil
}

// addView adds a view. In place of one that differs from the newest in times only, it adds that the newest still
// counts: an open page is to cost little.
func (f *feed) addView(e *stream.Events, view apiv1.DashboardView) error {
	now, lasting := time.Now(), withoutTimes(view)
	if !f.viewed.IsZero() && now.Sub(f.viewed) < viewInterval && reflect.DeepEqual(lasting, f.lasting) {
		return addJSON(e, apiv1.EventSame, apiv1.DashboardSame{At: view.At})
	}
	f.lasting, f.viewed = lasting, now
	return addJSON(e, apiv1.EventView, view)
}

// withoutTimes returns a view without what changes all the time although nothing happens: times, contacts of less than
// a second ago, and how long the leader may be silent.
func withoutTimes(v apiv1.DashboardView) apiv1.DashboardView {
	v.At = time.Time{}
	v.Cluster.Members, v.Nodes = slices.Clone(v.Cluster.Members), slices.Clone(v.Nodes)
	for i := range v.Cluster.Members {
		v.Cluster.Members[i].LastContactMS = inSeconds(v.Cluster.Members[i].LastContactMS)
	}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		n.LastContactMS, n.LeaseRemainingMS, n.Silence = inSeconds(n.LastContactMS), 0, nil
	}
	if v.SplitBrain != nil {
		report := *v.SplitBrain
		report.CheckedAt, report.Claims = time.Time{}, slices.Clone(report.Claims)
		for i := range report.Claims {
			report.Claims[i].At = time.Time{}
		}
		v.SplitBrain = &report
	}
	return v
}

// inSeconds rounds milliseconds down to seconds.
func inSeconds(ms *int64) *int64 {
	if ms == nil {
		return nil
	}
	return new(*ms / 1000)
}

func addJSON(e *stream.Events, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return e.Event("", name, data)
}

// wait waits for feedInterval, or for an event of this node.
func (f *feed) wait(ctx context.Context) error {
	select {
	case <-time.After(feedPause):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return f.c.s.waitOwnEvents(ctx, f.since, "", feedInterval-feedPause)
}

// dashboardView returns what the page shows to this caller.
func (c *request) dashboardView(ctx context.Context) apiv1.DashboardView {
	now := time.Now()
	out := apiv1.DashboardView{
		Caller: apiv1.Caller{Name: c.caller.name, Role: string(c.caller.role)},
		NodeID: string(c.s.deps.Node.ID), At: now.UTC(), Cluster: c.clusterFor(now), Nodes: c.statuses(ctx, now),
	}
	if c.caller.role.Allows(token.Operator) {
		out.AutoFailover = new(c.s.autoFailover(now))
		if r, err := c.s.deps.SplitBrain.Report(ctx); err == nil {
			out.SplitBrain = new(c.s.wireReport(r))
		}
	}
	return out
}

// clusterFor returns the leader's view, or this node's own if the leader does not respond.
func (c *request) clusterFor(now time.Time) apiv1.Cluster {
	st := c.s.reads.Status()
	if st.Role != cluster.Leader && st.LeaderID != "" {
		var view apiv1.Cluster
		body, err := c.leadersView(st.LeaderID)
		if err == nil && json.Unmarshal(body, &view) == nil {
			return view
		}
	}
	return c.s.clusterView(now)
}

// statuses returns the status of this node and of each other member that answers, in order of ID.
func (c *request) statuses(ctx context.Context, now time.Time) []apiv1.Status {
	ids := c.s.otherMembers()
	asked, errs := make([]apiv1.Status, len(ids)), make([]error, len(ids))
	var asking sync.WaitGroup
	for i, id := range ids {
		asking.Go(func() { errs[i] = c.askMember(ctx, id, apiv1.PathStatus, nil, &asked[i]) })
	}
	asking.Wait()
	all := []apiv1.Status{c.s.status(now)}
	for i, st := range asked {
		if errs[i] == nil {
			all = append(all, st)
		}
	}
	slices.SortFunc(all, func(a, b apiv1.Status) int { return strings.Compare(a.NodeID, b.NodeID) })
	return all
}
