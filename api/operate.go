package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/stream"
)

// Backups writes and restores backups of keys and settings.
type Backups interface {
	Backup(ctx context.Context, w io.Writer) error
	Restore(ctx context.Context, r io.Reader) error
}

// getSnapshot answers with a backup of everything acknowledged before the request.
func getSnapshot(c *request) error {
	ctx := c.r.Context()
	err := c.onLeader(ctx, forward.Request{Idempotent: true, Local: func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, apiv1.DefaultTimeoutMS*time.Millisecond)
		defer cancel()
		return c.s.reads.ReadBarrier(ctx)
	}})
	if err != nil {
		return err
	}
	h := c.Header()
	h["Content-Type"] = typeBinary
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
	h.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", c.s.deps.Node.ClusterName+".snapshot"))
	h.Set("Trailer", apiv1.HeaderChecksum)
	sum := sha256.New()
	if err := c.s.deps.Backups.Backup(ctx, io.MultiWriter(stream.Writer(c), sum)); err != nil {
		if !c.wrote {
			h.Del("Trailer")
			h.Del("Content-Disposition")
			return err
		}
		c.s.logger.Warn("backup stream aborted", "error", err)
		panic(http.ErrAbortHandler) // a truncated backup must not look complete
	}
	h.Set(apiv1.HeaderChecksum, "sha256:"+hex.EncodeToString(sum.Sum(nil)))
	return nil
}

func postRestore(c *request) error {
	if err := c.checkContentEncoding(); err != nil {
		return err
	}
	if err := c.checkMedia(apiv1.TypeBinary); err != nil {
		return err
	}
	body := stream.NewBody(c.ResponseWriter, c.r)
	err := c.onLeader(c.r.Context(), forward.Request{Write: true, Stream: body, Local: func(ctx context.Context) error {
		return c.s.deps.Backups.Restore(ctx, body)
	}})
	if err != nil {
		return err
	}
	rev := c.s.reads.View().Revision()
	return c.reply(apiv1.RestoreResult{Revision: rev, Message: fmt.Sprintf("restored; the cluster is at revision %d",
		rev)})
}
