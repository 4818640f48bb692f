package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"northstar/api/apiv1"
)

// get sends a read and decodes the JSON response.
func get[T any](ctx context.Context, c *Client, q *call) (T, error) {
	q.method = http.MethodGet
	return decode[T](c.do(ctx, q))
}

// sendJSON sends q with a JSON body and decodes the JSON response.
func sendJSON[T any](ctx context.Context, c *Client, q *call, body any) (T, error) {
	if err := q.setJSON(body); err != nil {
		var none T
		return none, err
	}
	return decode[T](c.do(ctx, q))
}

// admin sends a change of the cluster itself. It is sent again only if the previous attempt certainly did nothing.
func admin[T any](ctx context.Context, c *Client, op, method, path string, body any) (T, error) {
	return sendJSON[T](ctx, c, &call{op: op, retryClass: nonIdempotentWrite, method: method, path: path}, body)
}

func (q *call) setJSON(body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("%s: encode: %w", q.op, err)
	}
	q.body = data
	q.header = http.Header{"Content-Type": {apiv1.TypeJSON}}
	return nil
}

// decode reads the JSON of a successful response.
func decode[T any](a *response, err error) (T, error) {
	var v T
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(a.body, &v); err != nil {
		return v, fmt.Errorf("decode response of %s: %w", a.node, err)
	}
	return v, nil
}

// params builds a query from pairs of a name and a value. It leaves out empty values.
func params(pairs ...string) url.Values {
	query := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	return query
}

// limitParam returns the value of ?limit; "" for 0, which leaves the number to the server.
func limitParam(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}
