package state

import (
	"errors"
	"fmt"

	"northstar/cluster"
)

// Refusal is the reason why a range, a transaction, a lease or a compaction was refused. Errors wrap it: use errors.Is.
type Refusal uint32

// The refusals. Their numbers are part of records, and are never reused.
const (
	LeaseNotFound     Refusal = 1
	LeaseExists       Refusal = 2
	LeaseTTLTooLarge  Refusal = 3
	KeyNotFound       Refusal = 4 // IgnoreValue or IgnoreLease without the key, or an empty Op
	DuplicateKey      Refusal = 5
	TooManyOps        Refusal = 6
	RequestTooLarge   Refusal = 7
	EmptyKey          Refusal = 8
	ValueProvided     Refusal = 9
	LeaseProvided     Refusal = 10
	InvalidSortOption Refusal = 11
	Compacted         Refusal = 12 // the revision is below View.CompactRevision
	FutureRevision    Refusal = 13
	InvalidKey        Refusal = 14 // not UTF-8, or longer than MaxKey
	LeaseNotOwned     Refusal = 15 // the caller is neither the owner of the lease nor an operator
)

// The texts are stored in audit records and idempotency results, so they change only with a new command version.
var refusals = [...]struct {
	code cluster.Code
	text string
}{
	LeaseNotFound:     {cluster.CodeSessionEnded, "the lease does not exist"},
	LeaseExists:       {cluster.CodeConditionFailed, "the lease exists already"},
	LeaseTTLTooLarge:  {cluster.CodeBadRequest, "the TTL is too large"},
	KeyNotFound:       {cluster.CodeConditionFailed, "the key does not exist"},
	DuplicateKey:      {cluster.CodeBadRequest, "a key is changed twice"},
	TooManyOps:        {cluster.CodeBadRequest, "there are too many operations"},
	RequestTooLarge:   {cluster.CodeBadRequest, "the transaction is too large"},
	EmptyKey:          {cluster.CodeBadRequest, "the key is empty"},
	ValueProvided:     {cluster.CodeBadRequest, "a value is given that is to be ignored"},
	LeaseProvided:     {cluster.CodeBadRequest, "a lease is given that is to be ignored"},
	InvalidSortOption: {cluster.CodeBadRequest, "the sort option is not known"},
	Compacted:         {cluster.CodeHistoryCompacted, "the revision has been compacted"},
	FutureRevision:    {cluster.CodeBadRequest, "the revision is in the future"},
	InvalidKey:        {cluster.CodeBadRequest, "the key is not valid UTF-8, or too long"},
	LeaseNotOwned:     {cluster.CodeForbidden, "the lease belongs to another identity: only that and operators may use it"},
}

func (r Refusal) Error() string {
	if int(r) >= len(refusals) || refusals[r].text == "" {
		return fmt.Sprintf("refusal %d", uint32(r))
	}
	return refusals[r].text
}

// refused returns the error of a refusal.
func refused(r Refusal) *cluster.Error {
	err := cluster.Errorf(cluster.CodeBadRequest, "%w", r)
	if int(r) < len(refusals) {
		err.Code = refusals[r].code
	}
	return err
}

// refusalOf returns the refusal that an error wraps, 0 if none.
func refusalOf(err *cluster.Error) Refusal {
	var r Refusal
	if err != nil {
		errors.As(err, &r)
	}
	return r
}
