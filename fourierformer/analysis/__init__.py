"""Measurements that need no training: trained heads compared, the estimators of the theory."""
